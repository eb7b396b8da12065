//! The tools for a volume.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::exit;

use clap::Args;
use slimio_device::PathOptions;
use slimio_server::config::Config;
use slimio_server::explain;
use slimio_ssd::{Clock, DriveOptions, DriveWatch, PREFIX};
use slimio_storage::{
    Area, Error, ExtentMap, Inspection, SlotName, SlotSummary, SnapshotKind, Storage, Superblock,
    SuperblockCopy, inspect, verify,
};

use crate::volume;

/// The option that names a tool's volume.
#[derive(Debug, Args)]
pub(crate) struct VolumeArg {
    /// Directory, NVMe namespace, block device or emulated SSD (emulated:FILE,size=4G) that holds
    /// the volume
    #[arg(long, default_value = "./slimio-data/")]
    volume: String,
}

impl VolumeArg {
    fn open(&self, create: bool) -> Result<Storage, String> {
        volume::open(&self.volume, PathOptions::default(), create, u64::MAX)
    }

    /// Opens the volume, which must exist.
    pub(crate) fn open_existing(&self) -> Result<Storage, String> {
        let storage = self.open(false)?;
        if storage.exists {
            Ok(storage)
        } else {
            Err(format!(
                "there is no SlimIO volume in {}; make one with slimio format, or check --volume",
                storage.name
            ))
        }
    }
}

/// `slimio format`
#[derive(Debug, Args)]
pub(crate) struct Format {
    #[command(flatten)]
    volume: VolumeArg,
    /// Replace an existing volume; its data is lost
    #[arg(long)]
    force: bool,
}

impl Format {
    pub(crate) fn run(&self) -> Result<(), String> {
        let mut storage = self.volume.open(true)?;
        slimio_server::make_volume(&mut storage, &Config::default(), self.force)?;
        say(&format!("made a new volume in {}", storage.name));
        Ok(())
    }
}

/// `slimio inspect`
#[derive(Debug, Args)]
pub(crate) struct Inspect {
    #[command(flatten)]
    volume: VolumeArg,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// `slimio verify`
#[derive(Debug, Args)]
pub(crate) struct Verify {
    #[command(flatten)]
    volume: VolumeArg,
}

/// Prints a line of the tool's output. If nobody reads the output any more, as with `| head`, the
/// program ends. If the line can't be written for another reason, the program ends with an error.
/// So this function may be called only when no work is half done.
pub(crate) fn say(line: &str) {
    let Err(error) = writeln!(io::stdout(), "{line}") else { return };
    if error.kind() == io::ErrorKind::BrokenPipe {
        exit(0);
    }
    let _: io::Result<()> = writeln!(io::stderr(), "slimio: cannot write the output: {error}");
    exit(1);
}

/// Prints a line about work that the tool still has to do. Errors are ignored, because the work
/// must be done even if nobody reads the line.
pub(crate) fn announce(line: &str) {
    let _: io::Result<()> = writeln!(io::stdout(), "{line}");
}

impl Inspect {
    /// Shows the superblock, the snapshots and the log.
    pub(crate) fn run(&self) -> Result<(), String> {
        let (mut storage, watch) = match open_watched(&self.volume.volume)? {
            Some((storage, watch)) => (storage, Some(watch)),
            None => (self.volume.open_existing()?, None),
        };
        let found = inspect(&mut *storage.media).map_err(|e| explain(&e))?;
        if self.json {
            say(&as_json(&storage.name, &found));
            return Ok(());
        }
        say(&as_text(&storage.name, &found));
        if let Some(watch) = watch {
            say(&format!("{:<20} {}", "emulated SSD", slimio_volume::summary(&watch, &found)));
            say(&format!("{:<20} {}", "note", storage.why_not_better));
        }
        Ok(())
    }
}

impl Verify {
    /// Reads everything that a start would read, and also the snapshots that it would not read.
    pub(crate) fn run(&self) -> Result<(), String> {
        let mut storage = self.volume.open_existing()?;
        let report = verify(&mut *storage.media, &mut |_| {})
            .map_err(|e| format!("the volume {} is not whole: {}", storage.name, explain(&e)))?;
        say(&report.to_string());
        if report.other_device.is_some() {
            say(IS_A_COPY);
        }
        Ok(())
    }
}

/// Opens the volume on an existing emulated SSD, together with a [`DriveWatch`] of the drive.
/// Returns `None` if `spec` does not name an emulated SSD.
fn open_watched(spec: &str) -> Result<Option<(Storage, DriveWatch)>, String> {
    let Some(options) = spec.strip_prefix(PREFIX) else { return Ok(None) };
    let options = DriveOptions::parse(options, Clock::Virtual)
        .map_err(|error| format!("cannot open the volume {spec}: {error}"))?;
    let (storage, watch) = slimio_volume::open_watched(Path::new(spec), options)
        .map_err(|error| volume::explain(&error, spec))?;
    if !storage.exists {
        return Err(format!("there is no SlimIO volume in {spec}; start a server on it first"));
    }
    Ok(Some((storage, watch)))
}

/// The tools' line about a volume that was last written on another device.
const IS_A_COPY: &str = "a copy: a server starts on it only with --volume-identity accept";

fn describe(copy: &SuperblockCopy) -> String {
    match copy {
        SuperblockCopy::Valid(superblock, _) => format!("valid, sequence {}", superblock.sequence),
        SuperblockCopy::Empty => "never written".into(),
        SuperblockCopy::Unfinished => "a volume that was being made".into(),
        SuperblockCopy::OtherVersion(version) => format!("format version {version}"),
        SuperblockCopy::Damaged { why, .. } => format!("damaged: {why}"),
    }
}

/// The fields of the superblock that is in force, each as a name and a number.
fn fields(superblock: &Superblock) -> Vec<(&'static str, u64)> {
    let Superblock { geometry, start, cut, .. } = superblock;
    vec![
        ("sequence", superblock.sequence),
        ("epoch", superblock.epoch),
        ("buffers_epoch", superblock.buffers_epoch),
        ("segment_lbas", geometry.segment_lbas),
        ("batch_lbas_max", geometry.batch_lbas_max.into()),
        ("wal_slots_max", geometry.wal_slots_max.into()),
        ("start_segment", start.segment),
        ("start_lba", start.lba),
        ("start_lsn", start.lsn.0),
        ("cut_segment", cut.segment),
        ("cut_lba", cut.lba),
        ("cut_lsn", cut.lsn.0),
    ]
}

fn as_text(name: &str, found: &Inspection) -> String {
    let mut lines = vec![format!("volume {name}")];
    for (index, copy) in found.copies.iter().enumerate() {
        lines.push(format!("superblock copy {index}    {}", describe(copy)));
    }
    if let Some(superblock) = &found.superblock {
        lines.push(format!("{:<20} {:032x}", "volume_id", superblock.volume_id.0));
        if !superblock.identity.is_empty() {
            lines.push(format!("{:<20} {}", "device", superblock.identity));
        }
        for (name, value) in fields(superblock) {
            lines.push(format!("{name:<20} {value}"));
        }
    }
    lines.extend(
        extents(found).map(|extents| format!("{:<20} {}", "extents", extents_as_text(extents))),
    );
    for (segment, slot) in &found.segments {
        lines.push(format!("{:<20} in slot {slot}", format!("segment {segment}")));
    }
    if let Some(superblock) = &found.superblock {
        let snapshots = &superblock.snapshots;
        lines.extend(SlotName::ALL.map(|slot| slot_as_text(slot, found)));
        lines.push(match snapshots.log_end() {
            None => format!("{:<20} goes on", "log"),
            Some(lsn) => format!("{:<20} has ended at LSN {lsn} (appendonly no)", "log"),
        });
    }
    lines.push(match &found.log {
        Ok(report) => report.to_string(),
        Err(error) => format!("log: {}", explain(error)),
    });
    let is_copy = matches!(&found.log, Ok(report) if report.other_device.is_some());
    lines.extend(is_copy.then(|| IS_A_COPY.to_owned()));
    lines.join("\n")
}

/// The extents of the areas, if the volume is on a device.
fn extents(found: &Inspection) -> Option<&ExtentMap> {
    found.superblock.as_ref()?.extents.as_ref()
}

fn extents_as_text(extents: &ExtentMap) -> String {
    let (areas, free) = extents.counts();
    let areas = areas.map(|(area, count)| format!("{} {count}", area.name()));
    let (all, lbas) = (extents.owners.len(), extents.extent_lbas);
    format!("{all}, each of {lbas} blocks: {}, free {free}", areas.join(", "))
}

fn extents_as_json(extents: &ExtentMap) -> String {
    let (areas, free) = extents.counts();
    let areas = areas.map(|(area, count)| format!("{}:{count}", quote(area.name())));
    format!("{{\"lbas\":{},{},\"free\":{free}}}", extents.extent_lbas, areas.join(","))
}

/// Describes the contents of a snapshot slot in one line.
fn slot_as_text(slot: SlotName, found: &Inspection) -> String {
    let name = Area::Snapshot(slot).name();
    let Some((held, checked)) = found.slots.iter().find(|(held, _)| held.slot == slot) else {
        let is_missing = found.missing_slots.contains(&slot);
        let state =
            if is_missing { "; its file is missing, and a start makes it again" } else { "" };
        return format!("{name:<20} reserve{state}");
    };
    let SlotSummary { lsn, entry_count, chunk_count, payload_size, created_ms, .. } = held;
    let role = if is_root(held, found) { ", the root" } else { "" };
    let state = match checked {
        Ok(()) => "whole".to_owned(),
        Err(error) => error.to_string(),
    };
    let needs = if held.is_fuzzy() {
        format!(" with the log up to {}", held.consistent_lsn)
    } else {
        String::new()
    };
    format!(
        "{name:<20} {}{role}: LSN {lsn}{needs}, {entry_count} entries in {chunk_count} chunks, \
         {payload_size} bytes, begun at {created_ms} ms; {state}",
        held.kind.name()
    )
}

fn is_root(held: &SlotSummary, found: &Inspection) -> bool {
    found.superblock.as_ref().is_some_and(|superblock| superblock.snapshots.root() == Some(held))
}

fn slot_as_json((held, checked): &(SlotSummary, Result<(), Error>), found: &Inspection) -> String {
    let numbers = [
        ("lsn", held.lsn.0),
        ("consistent_lsn", held.consistent_lsn.0),
        ("epoch", held.epoch),
        ("number", held.number),
        ("len_lbas", held.len_lbas),
        ("chunks", held.chunk_count),
        ("entries", held.entry_count),
        ("payload_bytes", held.payload_size),
        ("created_ms", held.created_ms),
    ];
    let numbers = numbers.map(|(name, value)| format!("{}:{value}", quote(name))).join(",");
    let error = match checked {
        Ok(()) => "null".to_owned(),
        Err(error) => quote(&error.to_string()),
    };
    format!(
        "{{\"slot\":{},\"kind\":{},\"is_root\":{},{numbers},\"error\":{error}}}",
        quote(Area::Snapshot(held.slot).name()),
        quote(match held.kind {
            SnapshotKind::Wal => "wal",
            SnapshotKind::OnDemand => "on-demand",
        }),
        is_root(held, found),
    )
}

fn as_json(name: &str, found: &Inspection) -> String {
    let copies: Vec<String> = found.copies.iter().map(|copy| quote(&describe(copy))).collect();
    let superblock = found.superblock.as_ref().map_or_else(
        || "null".to_owned(),
        |superblock| {
            let id = quote(&format!("{:032x}", superblock.volume_id.0));
            let device = quote(&superblock.identity);
            let fields = fields(superblock);
            let fields = fields.iter().map(|(name, value)| format!("{}:{value}", quote(name)));
            let all: Vec<String> = [format!("\"volume_id\":{id}"), format!("\"device\":{device}")]
                .into_iter()
                .chain(fields)
                .collect();
            format!("{{{}}}", all.join(","))
        },
    );
    let segments: Vec<String> = found
        .segments
        .iter()
        .map(|(segment, slot)| format!("{{\"segment\":{segment},\"slot\":{slot}}}"))
        .collect();
    let slots: Vec<String> = found.slots.iter().map(|slot| slot_as_json(slot, found)).collect();
    let missing: Vec<String> =
        found.missing_slots.iter().map(|slot| quote(Area::Snapshot(*slot).name())).collect();
    let log_end = found.superblock.as_ref().and_then(|found| found.snapshots.log_end());
    let log_end = log_end.map_or_else(|| "null".to_owned(), |lsn| lsn.to_string());
    let extents = extents(found).map_or_else(|| "null".to_owned(), extents_as_json);
    let log = match &found.log {
        Ok(report) => format!(
            "{{\"start_lsn\":{},\"end_lsn\":{},\"records\":{},\"batches\":{}}}",
            report.start, report.end, report.records, report.batches
        ),
        Err(error) => format!("{{\"error\":{}}}", quote(&error.to_string())),
    };
    format!(
        "{{\"volume\":{},\"copies\":[{}],\"superblock\":{superblock},\"segments\":[{}],\
         \"extents\":{extents},\"snapshots\":[{}],\"missing_slots\":[{}],\"log_end_lsn\":{log_end},\"log\":{log}}}",
        quote(name),
        copies.join(","),
        segments.join(","),
        slots.join(","),
        missing.join(",")
    )
}

/// A JSON string.
pub(crate) fn quote(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => {
                // Writing to a string does not fail.
                let _ = write!(quoted, "\\u{:04x}", c as u32);
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_quoted_as_json_wants_them() {
        assert_eq!(quote("a\"b\\c\n"), "\"a\\\"b\\\\c\\u000a\"");
    }
}
