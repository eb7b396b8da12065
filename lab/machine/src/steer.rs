//! Carries out requests that the guest makes to the host while the guest runs. The host can make a
//! namespace fail, heal it, hold its operations, or unplug it. The host can also start or end the
//! [drive](Drive) that it serves.
//!
//! Each namespace has a block node `disk-NAME` in QEMU. Below this node is either the namespace's
//! image itself or a driver that injects errors.

use slimio_host::Failure;

use crate::drive::{self, Drive};
use crate::namespaces::KINDS;
use crate::qmp::Qmp;

/// What a request changes, and for which namespace.
#[derive(Debug, PartialEq, Eq)]
enum Request {
    /// Operations of this kind fail until the namespace is healed. If the kind is flush, only the
    /// next flush fails, because QEMU itself must flush in order to heal.
    Fail {
        name: &'static str,
        operation: &'static str,
    },
    Heal {
        name: &'static str,
    },
    /// The controller disappears, as if pulled out.
    Unplug {
        name: &'static str,
    },
    /// The next operation of this kind reaches the device and stays there until a request resumes
    /// it.
    Hold {
        name: &'static str,
        event: &'static str,
    },
    Resume {
        name: &'static str,
    },
    Drive(drive::Order),
}

/// The operations that can be made to fail. When one fails, the guest sees the NVMe status that
/// QEMU has for an I/O error.
const OPERATIONS: &[&str] = &["read", "write", "flush", "discard"];
/// The operations that can be held, and QEMU's name for the point at which each is held.
const EVENTS: &[(&str, &str)] = &[("write", "pwritev"), ("flush", "flush_to_disk")];

pub(crate) fn answer(qmp: &mut Qmp, drive: Option<&mut Drive>, line: &str) -> Result<(), Failure> {
    match parse(line)? {
        Request::Fail { name, operation } => {
            let once = operation == "flush";
            let rule = format!(
                r#","inject-error":[{{"event":"none","iotype":"{operation}","errno":5,"immediately":true,"once":{once}}}]"#
            );
            interpose(qmp, name, &rule)
        }
        Request::Heal { name } => heal(qmp, name),
        Request::Unplug { name } => {
            qmp.execute("device_del", &format!(r#"{{"id":"controller-{name}"}}"#)).map(drop)
        }
        Request::Hold { name, event } => {
            interpose(qmp, name, "")?;
            monitor(qmp, &format!("qemu-io -d namespace-{name} \\\"break {event} held\\\""))
        }
        Request::Resume { name } => {
            monitor(qmp, &format!("qemu-io -d namespace-{name} \\\"resume held\\\""))
        }
        Request::Drive(order) => drive.ok_or("the machine has no drive")?.take(&order),
    }
}

/// Puts a driver that injects errors below the device.
fn interpose(qmp: &mut Qmp, name: &str, rules: &str) -> Result<(), Failure> {
    // A driver that an earlier request has put below the device is removed first.
    heal(qmp, name)?;
    let errors = format!("errors-{name}");
    drop(qmp.execute("blockdev-del", &format!(r#"{{"node-name":"{errors}"}}"#)));
    qmp.execute(
        "blockdev-add",
        &format!(r#"{{"driver":"blkdebug","node-name":"{errors}","image":"file-{name}"{rules}}}"#),
    )?;
    reopen(qmp, name, &errors)
}

/// Puts the image itself below the device again.
fn heal(qmp: &mut Qmp, name: &str) -> Result<(), Failure> {
    let image = format!("file-{name}");
    // The first attempt begins with a flush, which may be the one that was to fail. If so, the
    // flush of the second attempt succeeds.
    reopen(qmp, name, &image).or_else(|_| reopen(qmp, name, &image))
}

/// Puts the node `below` right below the node `disk-NAME`.
fn reopen(qmp: &mut Qmp, name: &str, below: &str) -> Result<(), Failure> {
    qmp.execute(
        "blockdev-reopen",
        &format!(
            r#"{{"options":[{{"driver":"raw","node-name":"disk-{name}","file":"{below}","discard":"unmap"}}]}}"#
        ),
    )
    .map(drop)
}

/// Runs a command of QEMU's monitor for people, which reports errors only by printing something.
fn monitor(qmp: &mut Qmp, line: &str) -> Result<(), Failure> {
    let said = qmp.execute("human-monitor-command", &format!(r#"{{"command-line":"{line}"}}"#))?;
    if said.starts_with(r#"{"return": ""}"#) {
        return Ok(());
    }
    Err(format!("QEMU's monitor answered `{line}` with {said}").into())
}

fn parse(line: &str) -> Result<Request, Failure> {
    let unknown = || -> Failure { format!("the host knows no request `{line}`").into() };
    if let Some(rest) = line.strip_prefix("drive ") {
        let words: Vec<&str> = rest.split_whitespace().collect();
        return drive::Order::parse(&words).map(Request::Drive).ok_or_else(unknown);
    }
    let mut words = line.split_whitespace();
    let (verb, name) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let kind = KINDS.iter().find(|kind| kind.name == name).ok_or_else(unknown)?;
    let name = kind.name;
    let rest: Vec<&str> = words.collect();
    let operation = |wanted: &str| OPERATIONS.iter().find(|known| **known == wanted).copied();
    let event =
        |wanted: &str| EVENTS.iter().find(|(known, _)| *known == wanted).map(|(_, event)| *event);
    let request = match (verb, rest.as_slice()) {
        ("fail", [what]) => operation(what).map(|operation| Request::Fail { name, operation }),
        ("heal", []) => Some(Request::Heal { name }),
        ("unplug", []) => Some(Request::Unplug { name }),
        ("hold", [what]) => event(what).map(|event| Request::Hold { name, event }),
        ("resume", []) => Some(Request::Resume { name }),
        _ => None,
    };
    request.ok_or_else(unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_whole_or_not_at_all() {
        assert_eq!(
            parse("fail PLAIN write").unwrap(),
            Request::Fail { name: "PLAIN", operation: "write" }
        );
        assert_eq!(parse("heal FDP\n").unwrap(), Request::Heal { name: "FDP" });
        assert_eq!(
            parse("hold B512 flush").unwrap(),
            Request::Hold { name: "B512", event: "flush_to_disk" }
        );
        assert_eq!(parse("drive kill").unwrap(), Request::Drive(drive::Order::Kill));
        for wrong in [
            "",
            "drive",
            "drive PLAIN",
            "fail",
            "fail PLAIN",
            "fail OTHER read",
            "fail PLAIN read io",
            "heal",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
