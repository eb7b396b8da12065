//! The NVMe namespaces that a virtual machine of the lab can have, and QEMU's arguments for each.

use std::fs::File;
use std::path::{Path, PathBuf};

use slimio_host::Failure;

use crate::guest::said;

/// A kind of namespace. Each namespace has its own controller, whose serial number is the kind's
/// name.
#[derive(Debug)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) doc: &'static str,
    /// Flags of QEMU's `nvme-subsys`; `None` for no `nvme-subsys`.
    subsystem: Option<&'static str>,
    /// More flags of `nvme`, with a comma before each.
    controller: &'static str,
    /// More flags of `nvme-ns`.
    namespace: &'static str,
}

const FDP_SUBSYSTEM: &str = "fdp=on,fdp.runs=64M,fdp.nrg=1,fdp.nruh=8";
const BLOCKS_4096: &str = ",logical_block_size=4096,physical_block_size=4096";

/// All kinds, in the order in which a machine gets them.
pub(crate) const KINDS: &[Kind] = &[
    Kind {
        name: "FDP",
        doc: "four placement handles on reclaim units of 64 MiB",
        subsystem: Some(FDP_SUBSYSTEM),
        controller: "",
        namespace: ",fdp.ruhs=0;1;2;3",
    },
    Kind { name: "PLAIN", doc: "no FDP", subsystem: None, controller: "", namespace: "" },
    Kind {
        name: "B512",
        doc: "blocks of 512 bytes",
        subsystem: None,
        controller: "",
        namespace: ",logical_block_size=512,physical_block_size=512",
    },
    Kind {
        name: "SMALL_MDTS",
        doc: "takes at most 8 KiB in one command",
        subsystem: None,
        controller: ",mdts=1",
        namespace: "",
    },
    Kind {
        name: "ONE_HANDLE",
        doc: "FDP with a single placement handle",
        subsystem: Some(FDP_SUBSYSTEM),
        controller: "",
        namespace: ",fdp.ruhs=0",
    },
];

const SIZE_DEFAULT: u64 = 1 << 30;

/// One namespace of a machine that is to be started.
#[derive(Clone, Debug)]
pub(crate) struct Namespace {
    pub(crate) kind: &'static Kind,
    pub(crate) size: u64,
    /// Whether writes and flushes are recorded below the device, in order.
    pub(crate) recorded: bool,
}

impl Namespace {
    pub(crate) fn new(kind: &'static Kind) -> Self {
        Self { kind, size: SIZE_DEFAULT, recorded: false }
    }

    /// Parses `NAME` or `NAME=SIZE`. The size is in bytes, or ends in K, M or G.
    pub(crate) fn parse(text: &str) -> Result<Self, Failure> {
        let (name, size) = text.split_once('=').map_or((text, None), |(n, size)| (n, Some(size)));
        let kind = KINDS.iter().find(|kind| kind.name == name).ok_or_else(|| {
            let names: Vec<_> = KINDS.iter().map(|kind| kind.name).collect();
            format!(
                "`{name}` is not a namespace of the lab; its namespaces are {}",
                names.join(", ")
            )
        })?;
        let mut namespace = Self::new(kind);
        if let Some(size) = size {
            namespace.size =
                parse_size(size).ok_or_else(|| format!("`{size}` is not a size such as 256M"))?;
        }
        Ok(namespace)
    }

    pub(crate) fn all() -> Vec<Self> {
        KINDS.iter().map(Self::new).collect()
    }

    pub(crate) fn image(&self, folder: &Path) -> PathBuf {
        folder.join(format!("{}.raw", self.kind.name))
    }

    pub(crate) fn record(&self, folder: &Path) -> PathBuf {
        folder.join(format!("{}.record", self.kind.name))
    }

    /// Creates the namespace's files: an image of zeros, and an empty record.
    pub(crate) fn make(&self, folder: &Path) -> Result<(), Failure> {
        for (path, size) in [(self.image(folder), self.size), (self.record(folder), 0)] {
            let file = File::create(&path).and_then(|file| file.set_len(size));
            file.map_err(|error| said(&path, &error))?;
        }
        Ok(())
    }

    fn chassis(&self) -> usize {
        KINDS.iter().position(|kind| kind.name == self.kind.name).map_or(0, |index| index + 1)
    }

    /// QEMU's arguments. The node `disk-NAME` comes right below the device, so that the nodes below
    /// `disk-NAME` can be exchanged while the machine runs. A flush in the guest does not flush on
    /// the host, because that would take time, and no test needs it.
    pub(crate) fn arguments(&self, folder: &Path) -> Vec<String> {
        let Kind { name, subsystem, controller, namespace, .. } = self.kind;
        let image = self.image(folder);
        let mut arguments = Vec::new();
        let mut add = |flag: &str, value: String| arguments.extend([flag.to_owned(), value]);
        add(
            "-blockdev",
            format!(
                "driver=file,node-name=file-{name},filename={},discard=unmap,cache.no-flush=on",
                image.display()
            ),
        );
        let mut below = format!("file-{name}");
        if self.recorded {
            let record = self.record(folder);
            below = format!("recorder-{name}");
            add(
                "-blockdev",
                format!("driver=file,node-name=record-{name},filename={}", record.display()),
            );
            add(
                "-blockdev",
                format!(
                    "driver=blklogwrites,node-name={below},file=file-{name},log=record-{name},\
                     log-sector-size=512"
                ),
            );
        }
        add("-blockdev", format!("driver=raw,node-name=disk-{name},file={below},discard=unmap"));
        // The controller has its own root port, because the root complex does not release devices
        // while the machine runs.
        add("-device", format!("pcie-root-port,id=port-{name},chassis={}", self.chassis()));
        let mut controller =
            format!("nvme,id=controller-{name},bus=port-{name},serial={name}{controller}");
        if let Some(flags) = subsystem {
            add("-device", format!("nvme-subsys,id=subsystem-{name},nqn=slimio-{name},{flags}"));
            controller = format!("{controller},subsys=subsystem-{name}");
        }
        add("-device", controller);
        let blocks = if namespace.contains("logical_block_size") { "" } else { BLOCKS_4096 };
        add(
            "-device",
            format!(
                "nvme-ns,id=namespace-{name},drive=disk-{name},bus=controller-{name},nsid=1{namespace}{blocks}"
            ),
        );
        arguments
    }
}

fn parse_size(text: &str) -> Option<u64> {
    let (digits, shift) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        b'G' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let size = digits.parse::<u64>().ok()?.checked_mul(1 << shift)?;
    (size > 0 && size.is_multiple_of(4096)).then_some(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_named_with_or_without_a_size() {
        let namespace = Namespace::parse("FDP=256M").unwrap();
        assert_eq!((namespace.kind.name, namespace.size), ("FDP", 256 << 20));
        assert_eq!(Namespace::parse("PLAIN").unwrap().size, SIZE_DEFAULT);
        for wrong in ["OTHER", "FDP=", "FDP=0", "FDP=100", "FDP=1T", "FDP=99999999999G"] {
            assert!(Namespace::parse(wrong).is_err(), "{wrong}");
        }
    }
}
