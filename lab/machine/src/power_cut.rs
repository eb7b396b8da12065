//! Simulates power cuts of a session that has already run. The session left a record of the writes,
//! flushes and deallocations that its device finished. For each cut, this module rebuilds from the
//! record the images that the cut could have left. On each image, it starts the server or reads a
//! log file. Then it compares the writes found there with the writes that were acknowledged before
//! the cut.
//!
//! A client sends a write only once the previous one is acknowledged. Write N of a client contains
//! a mark with the number N. So if mark N is on the device, even in a volatile cache, the client's
//! write N - 1 was acknowledged. The record alone therefore says which writes must survive a cut,
//! and no clock is needed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use slimio_host::Failure;
use slimio_host::power_cut::{Entry, Survivors, write_image};
use slimio_host::process::command;
use slimio_host::server::Server;

use crate::guest::said;
use crate::namespaces::Namespace;
use crate::record;

/// Number of equal parts into which the cuts divide the record, from the first acknowledged write
/// to the record's end. There is a cut at each end of each part, so there is one cut more than
/// there are parts. Each cut gets three images.
const CUTS: usize = 10;
const BLOCK_SIZE: u64 = 4096;
/// The clients of `tests/lab/power-cut-load` write `<mark:CLIENT:NUMBER>`.
const MARK: &[u8] = b"<mark:";

/// Part of the message about a lost write.
pub(crate) const MISSED: &str = "was told that write";

/// The highest mark of each client.
type Marks = BTreeMap<u64, u64>;

/// Checks the record of the session in `folder`. `log` names the file that has the marks. If `log`
/// is `None`, the data of a server has the marks. Returns the number of images, or `None` if no
/// loop device can be made.
pub(crate) fn check(
    folder: &Path,
    namespace: &Namespace,
    log: Option<&str>,
) -> Result<Option<usize>, Failure> {
    let recover = |image: &Path| match log {
        Some(log) => read_log(folder, image, log),
        None => recover(folder, image),
    };
    let trace = folder.join("results/trace");
    let entries = record::read(&namespace.record(folder), &trace, BLOCK_SIZE)?;
    let seen = marks_by_cut(&entries);
    let cuts = cuts(&seen)?;
    let image = folder.join("cut.raw");
    let mut images = 0;
    for &cut in &cuts {
        for survivors in [Survivors::None, Survivors::All, Survivors::Some(cut as u64 * 0x9e37)] {
            write_image(&entries, cut, survivors, namespace.size, &image)
                .map_err(|error| said(&image, &error))?;
            let Some(found) = recover(&image) else { return Ok(None) };
            let at = format!("cut after {cut} of {} operations, {survivors:?}", entries.len());
            let found = found.map_err(|Failure(why)| format!("{at}: {why}"))?;
            compare(&seen[cut], &found).map_err(|why| format!("{at}: {why}"))?;
            images += 1;
        }
    }
    // A check that cannot fail proves nothing. So the check is done once more, on a record without
    // any flush or FUA, and must fail there.
    let volatile: Vec<Entry> = entries.into_iter().filter_map(Entry::without_stability).collect();
    let seen = marks_by_cut(&volatile);
    write_image(&volatile, volatile.len(), Survivors::None, namespace.size, &image)
        .map_err(|error| said(&image, &error))?;
    let Some(found) = recover(&image) else { return Ok(None) };
    if found.is_ok_and(|found| compare(&seen[volatile.len()], &found).is_ok()) {
        return Err("without flushes and FUA, the check still found no lost write".into());
    }
    drop(std::fs::remove_file(&image));
    Ok(Some(images))
}

/// For each n from 0 on, the highest marks among the first n entries.
fn marks_by_cut(entries: &[Entry]) -> Vec<Marks> {
    let mut marks = Marks::new();
    let mut all = vec![marks.clone()];
    for entry in entries {
        if let Entry::Write { data, .. } = entry {
            for (client, number) in marks_in(data) {
                let highest = marks.entry(client).or_default();
                *highest = number.max(*highest);
            }
        }
        all.push(marks.clone());
    }
    all
}

fn marks_in(data: &[u8]) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    let mut rest = data;
    while let Some(at) = rest.windows(MARK.len()).position(|window| window == MARK) {
        rest = &rest[at..];
        let end = rest.iter().take(40).position(|byte| *byte == b'>').unwrap_or(0);
        found.extend(parse_mark(&String::from_utf8_lossy(&rest[..=end])));
        rest = &rest[MARK.len()..];
    }
    found
}

/// Parses `<mark:CLIENT:NUMBER>`.
fn parse_mark(text: &str) -> Option<(u64, u64)> {
    let (client, number) = text.strip_prefix("<mark:")?.strip_suffix('>')?.split_once(':')?;
    Some((client.parse().ok()?, number.parse().ok()?))
}

/// The places of the cuts, as numbers of entries before the cut. The places are at even distances
/// from the first acknowledged write to the end.
fn cuts(seen: &[Marks]) -> Result<Vec<usize>, Failure> {
    let first = seen.iter().position(|marks| marks.values().any(|number| *number > 1));
    let first = first.ok_or("the record has no acknowledged write")?;
    let last = seen.len() - 1;
    if last - first < 4 * CUTS {
        return Err(format!(
            "the record has only {} operations after the first acknowledged write",
            last - first
        )
        .into());
    }
    Ok((0..=CUTS).map(|index| first + (last - first) * index / CUTS).collect())
}

/// Starts the server on the image and asks for each client's mark. `None` if no loop device can be
/// made. The inner error says that the server did not start, or holds a wrong value.
fn recover(folder: &Path, image: &Path) -> Option<Result<Marks, Failure>> {
    let device = LoopDevice::new(image)?;
    let read = || -> Result<Marks, Failure> {
        let server = Server::start(folder, &device.path, "always")?;
        let mut marks = Marks::new();
        for client in 1..=9 {
            let Some(value) = server.get(&format!("client:{client}"))? else { continue };
            let (owner, number) =
                parse_mark(&value).ok_or("the value of a client is not a mark")?;
            if owner != client {
                return Err(
                    format!("the value of client {client} is a mark of client {owner}").into()
                );
            }
            marks.insert(client, number);
        }
        Ok(marks)
    };
    Some(read())
}

/// Like [`recover`], but mounts the image and reads the marks from a log file. The log has the
/// marks of only one client.
fn read_log(folder: &Path, image: &Path, log: &str) -> Option<Result<Marks, Failure>> {
    let device = LoopDevice::new(image)?;
    let at = folder.join("mounted");
    let read = || -> Result<Marks, Failure> {
        let failed = |what: &str| Failure(format!("the file system can't be {what}"));
        std::fs::create_dir_all(&at)
            .map_err(|_| failed("mounted, because the folder for it can't be made"))?;
        let mounted = command("mount").arg(&device.path).arg(&at).status();
        mounted.ok().filter(ExitStatus::success).ok_or_else(|| failed("mounted"))?;
        let bytes = std::fs::read(at.join(log));
        let unmounted = command("umount").arg(&at).status();
        unmounted.ok().filter(ExitStatus::success).ok_or_else(|| failed("unmounted"))?;
        marks_in_order(&bytes.unwrap_or_default())
    };
    Some(read())
}

/// The last mark of a log. Fails unless the log has the marks of client 1 in order, without a gap.
/// After the last mark, the log may have the beginning of a record, or zeros.
fn marks_in_order(log: &[u8]) -> Result<Marks, Failure> {
    let marks = marks_in(log);
    let wrong =
        marks.iter().zip(1..).find(|((client, number), due)| (*client, *number) != (1, *due));
    if let Some(((client, number), due)) = wrong {
        let why = format!("mark {number} of client {client} is where mark {due} should be");
        return Err(why.into());
    }
    Ok(marks.last().copied().into_iter().collect())
}

/// Checks that every acknowledged write was found, and that every write that was found had been
/// sent.
fn compare(seen: &Marks, found: &Marks) -> Result<(), String> {
    for (client, &sent) in seen {
        let number = found.get(client).copied().unwrap_or(0);
        let acknowledged = sent - 1;
        if number < acknowledged || number > sent {
            return Err(format!(
                "client {client} {MISSED} {acknowledged} is durable; the last one found is {number}"
            ));
        }
    }
    match found.keys().find(|client| !seen.contains_key(client)) {
        Some(client) => Err(format!("client {client} has a mark, but had sent nothing")),
        None => Ok(()),
    }
}

/// A loop device, detached on drop.
struct LoopDevice {
    path: PathBuf,
}

impl LoopDevice {
    fn new(image: &Path) -> Option<Self> {
        let made = command("losetup").args(["--find", "--show"]).arg(image).output().ok()?;
        let path = String::from_utf8(made.stdout).ok()?;
        made.status.success().then(|| Self { path: path.trim().into() })
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        drop(command("losetup").arg("--detach").arg(&self.path).status());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_found_among_other_bytes() {
        let data = b"\0\0<mark:1:2>x<mark:1:17><mark:2:<mark:3:4>\xff<mark:";
        assert_eq!(marks_in(data), [(1, 2), (1, 17), (3, 4)]);
    }

    #[test]
    fn a_log_has_its_marks_in_order() {
        let last = |log: &[u8]| marks_in_order(log).ok().map(|marks| marks.get(&1).copied());
        assert_eq!(last(b"<mark:1:1>xx<mark:1:2>x<mark:1:\0\0"), Some(Some(2)));
        assert_eq!(last(b"\0\0"), Some(None));
        assert_eq!(last(b"<mark:1:1>\0\0<mark:1:3>"), None, "mark 2 is missing");
        assert_eq!(last(b"<mark:1:2>"), None);
    }

    #[test]
    fn what_was_acknowledged_must_be_there() {
        let marks = |pairs: &[(u64, u64)]| pairs.iter().copied().collect::<Marks>();
        let seen = marks(&[(1, 5), (2, 1)]);
        assert!(compare(&seen, &marks(&[(1, 4)])).is_ok());
        assert!(compare(&seen, &marks(&[(1, 5), (2, 1)])).is_ok());
        assert!(compare(&seen, &marks(&[(1, 3)])).is_err());
        assert!(compare(&seen, &marks(&[(1, 6)])).is_err());
        assert!(compare(&seen, &marks(&[(1, 5), (3, 1)])).is_err());
    }
}
