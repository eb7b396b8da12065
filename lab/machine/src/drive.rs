//! An emulated drive that the host serves over NVMe/TCP, and how the guest reaches it.
//!
//! The guest can reach nothing else: QEMU lets only connections to [`ADDRESS`] through. For each
//! connection, QEMU runs a program. The program looks up the drive's port at that moment, because
//! the drive gets another port at each start.
//!
//! ```text
//!   guest: 10.0.2.2:4420 ──► QEMU ──► nc ──► 127.0.0.1, port of `slimio drive serve`
//! ```

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use slimio_host::Failure;
use slimio_host::process::{command, succeeds, target_dir};

use crate::guest::{quoted, said};
use crate::tools;

/// The address at which the guest reaches the drive.
pub(crate) const ADDRESS: &str = "10.0.2.2:4420";
/// Modules that the guest loads to reach the drive.
pub(crate) const MODULES: &[&str] = &["virtio_net", "nvme_tcp"];
/// How long the drive may take to start, and how long to end.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// The text right before the port in the drive's message.
const LISTENS_AT: &str = "127.0.0.1:";

/// The drive of one machine.
#[derive(Debug)]
pub(crate) struct Drive {
    /// The options after `emulated:FILE`, such as `size=1G`.
    options: String,
    /// The folder of the drive's files.
    folder: PathBuf,
    running: Option<Child>,
}

/// What the guest asks the host to do with the drive.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Start the drive, with further flags of `slimio drive serve`.
    Start(Vec<String>),
    /// Stop the drive with SIGTERM, so that it ends in good order.
    Stop,
    /// Kill the drive, so that it cannot write anything more.
    Kill,
}

impl Order {
    pub(crate) fn parse(words: &[&str]) -> Option<Self> {
        match words {
            ["start", flags @ ..] => {
                Some(Self::Start(flags.iter().map(|flag| (*flag).to_owned()).collect()))
            }
            ["stop"] => Some(Self::Stop),
            ["kill"] => Some(Self::Kill),
            _ => None,
        }
    }
}

impl Drive {
    /// A drive with its files in `folder`. It does not run before [`Order::Start`].
    pub(crate) fn new(folder: &Path, options: &str) -> Result<Self, Failure> {
        let drive = Self { options: options.into(), folder: folder.into(), running: None };
        let busybox = tools::find("busybox").ok_or("busybox is not installed")?;
        let forward = drive.forward();
        let script = format!(
            "#!/bin/sh\n# Messages must not get into the connection.\nexec 2>/dev/null\nexec {} nc \
             127.0.0.1 \"$(cat {})\"\n",
            quoted(&busybox.to_string_lossy()),
            quoted(&drive.port().to_string_lossy())
        );
        fs::write(&forward, script)
            .and_then(|()| fs::set_permissions(&forward, fs::Permissions::from_mode(0o755)))
            .map_err(|error| said(&forward, &error))?;
        Ok(drive)
    }

    /// QEMU's arguments for the guest's network.
    pub(crate) fn arguments(&self) -> [String; 4] {
        // In QEMU's options, two commas stand for one.
        let forward = quoted(&self.forward().to_string_lossy()).replace(',', ",,");
        let network = format!(
            "user,id=net,restrict=on,ipv6=off,net=10.0.2.0/24,host=10.0.2.1,dns=10.0.2.3,\
             guestfwd=tcp:{ADDRESS}-cmd:{forward}"
        );
        let card = "virtio-net-pci,netdev=net,romfile=";
        ["-netdev".into(), network, "-device".into(), card.into()]
    }

    pub(crate) fn take(&mut self, order: &Order) -> Result<(), Failure> {
        match order {
            Order::Start(flags) => self.start(flags),
            Order::Stop => self.end(|drive| {
                let pid = drive.id().to_string();
                if succeeds(command("kill").arg(pid)) {
                    Ok(())
                } else {
                    Err("`kill` failed".into())
                }
            }),
            Order::Kill => self.end(|drive| drive.kill().map_err(|error| error.to_string())),
        }
    }

    /// Starts the drive. Returns when the drive takes connections.
    fn start(&mut self, flags: &[String]) -> Result<(), Failure> {
        if self.running.is_some() {
            return Err("the drive runs already".into());
        }
        let path = self.log();
        let log = File::create(&path).map_err(|error| said(&path, &error))?;
        let both = log.try_clone().map_err(|error| said(&path, &error))?;
        let spec = format!("emulated:{},{}", self.folder.join("drive").display(), self.options);
        // `setpriv` makes the kernel kill the drive when this process ends, even after a crash.
        let mut drive = command("setpriv");
        drive.args(["--pdeathsig", "KILL", "--"]).arg(target_dir().join("debug/slimio"));
        drive.args(["drive", "serve", "--listen", "127.0.0.1:0"]).args(flags).arg(spec);
        let drive = drive.stdout(log).stderr(both).spawn();
        let drive = drive.map_err(|error| format!("the drive did not start: {error}"))?;
        self.running = Some(drive);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let said_so_far = fs::read_to_string(&path).unwrap_or_default();
            if let Some(port) = port_in(&said_so_far) {
                let path = self.port();
                return fs::write(&path, port).map_err(|error| said(&path, &error));
            }
            if let Some(status) = self.ended()? {
                self.running = None;
                return Err(format!(
                    "the drive ended during its start with {status}: {said_so_far}"
                )
                .into());
            }
            if Instant::now() > deadline {
                return Err(format!("the drive has printed no port: {said_so_far}").into());
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn ended(&mut self) -> Result<Option<ExitStatus>, Failure> {
        let Some(drive) = &mut self.running else { return Ok(None) };
        drive
            .try_wait()
            .map_err(|error| format!("it is unknown whether the drive runs: {error}").into())
    }

    /// Ends the drive by calling `how`, and waits until the drive has ended. Fails if the drive had
    /// already ended by itself; even then, the drive can be started again.
    fn end(&mut self, how: impl FnOnce(&mut Child) -> Result<(), String>) -> Result<(), Failure> {
        if let Some(status) = self.ended()? {
            self.running = None;
            let log = fs::read_to_string(self.log()).unwrap_or_default();
            return Err(format!("the drive has ended by itself with {status}: {log}").into());
        }
        let drive = self.running.as_mut().ok_or("the drive does not run")?;
        how(drive).map_err(|why| format!("the drive could not be ended: {why}"))?;
        let deadline = Instant::now() + PATIENCE;
        while self.ended()?.is_none() {
            if Instant::now() > deadline {
                return Err("the drive does not end".into());
            }
            std::thread::sleep(LOOK_EVERY);
        }
        self.running = None;
        Ok(())
    }

    fn forward(&self) -> PathBuf {
        self.folder.join("forward")
    }

    fn port(&self) -> PathBuf {
        self.folder.join("drive.port")
    }

    /// The file with the drive's output since its last start.
    fn log(&self) -> PathBuf {
        self.folder.join("drive.log")
    }
}

impl Drop for Drive {
    fn drop(&mut self) {
        if let Some(drive) = &mut self.running {
            drop(drive.kill());
            drop(drive.wait());
        }
    }
}

/// The port in the drive's message about its address. `None` if no other character follows the
/// port yet, because digits may still be missing.
fn port_in(said: &str) -> Option<&str> {
    let (_, rest) = said.split_once(LISTENS_AT)?;
    let end = rest.find(|c: char| !c.is_ascii_digit())?;
    (end > 0).then(|| &rest[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_read_when_the_message_is_complete() {
        assert_eq!(port_in("drive at 127.0.0.1:4420, NQN x\n"), Some("4420"));
        assert_eq!(port_in("drive at 127.0.0.1:44"), None);
        assert_eq!(port_in("drive at 127.0.0.1: no\n"), None);
    }

    #[test]
    fn orders_are_read_whole_or_not_at_all() {
        assert_eq!(Order::parse(&["start"]), Some(Order::Start(Vec::new())));
        let flags = vec!["--allow".to_owned(), "nqn".to_owned()];
        assert_eq!(Order::parse(&["start", "--allow", "nqn"]), Some(Order::Start(flags)));
        assert_eq!(Order::parse(&["kill"]), Some(Order::Kill));
        for wrong in [&["stop", "now"][..], &["restart"], &[]] {
            assert_eq!(Order::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn only_the_drive_is_within_the_guests_reach() {
        let folder = std::env::temp_dir().join(format!("slimio-drive,{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let drive = Drive::new(&folder, "size=1M").unwrap();
        let [_, network, ..] = drive.arguments();
        assert!(network.contains("restrict=on"), "{network}");
        let script = quoted(&folder.join("forward").to_string_lossy()).replace(',', ",,");
        assert!(network.ends_with(&format!("tcp:10.0.2.2:4420-cmd:{script}")), "{network}");
        fs::remove_dir_all(&folder).unwrap();
    }
}
