//! Experiments that draw pictures: the files that they write, and the arguments that they refuse.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use slimio_device::PathOptions;
use slimio_storage::{FormatOptions, VolumeId, format};

fn lab(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_slimio-lab")).args(args).output().expect("the lab starts")
}

/// Runs the lab with `args`, and returns what it prints. The lab must succeed.
fn said(args: &[&str]) -> String {
    let output = lab(args);
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).expect("the output is text")
}

/// Runs the lab with `args`, and returns its error message. The lab must refuse to run.
fn refused(args: &[&str]) -> String {
    let output = lab(args);
    assert!(!output.status.success(), "{args:?}: {output:?}");
    let text = String::from_utf8(output.stderr).expect("the message is text");
    assert_eq!(text.matches('\n').count(), 1, "the message must be a single line: {text}");
    text
}

fn text_of(path: &Path) -> &str {
    path.to_str().expect("the path is text")
}

#[test]
fn an_experiment_leaves_tables_and_pictures() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let out = folder.path().join("made");
    let small = ["--machines", "200", "--simulated", "20", "--units", "200"];
    said(&[&["tenants", "--out", text_of(&out)][..], &small].concat());
    let files = fs::read_dir(&out).expect("the folder is made");
    let mut names: Vec<String> = files
        .map(|file| file.expect("the entry is read").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    assert_eq!(names, ["tenants-3-7.svg", "tenants-6-4.svg", "tenants.md"]);
    let text = fs::read_to_string(out.join("tenants.md")).expect("the table is text");
    assert!(text.contains("--machines 200 --simulated 20"), "{text}");
    let is_number = |word: &str| !matches!(word, "NaN" | "inf" | "-inf");
    assert!(text.split_whitespace().all(is_number), "{text}");
}

#[test]
fn a_map_is_drawn_of_an_emulated_drive_with_a_volume() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let drive = format!("emulated:{}", text_of(&folder.path().join("drive")));
    let out = folder.path().join("map.svg");
    let map = ["map", "--out", text_of(&out), "--volume", &drive];
    {
        let made = format!("{drive},size=360M");
        let opened = slimio_volume::open(made.as_ref(), PathOptions::default(), true, u64::MAX);
        let mut storage = opened.expect("the drive is made");
        let options = FormatOptions {
            volume_id: VolumeId(1),
            segment_lbas: 512,
            batch_lbas_max: 64,
            wal_slots_max: 8,
            replace: false,
        };
        format(&mut *storage.media, &options).expect("the drive has room");
    }
    let text = said(&map);
    assert!(text.contains(" reclaim units: "), "{text}");
    assert!(fs::read(&out).expect("the map is drawn").starts_with(b"<svg "));
}

#[test]
fn what_makes_no_sense_is_refused_with_a_sentence() {
    for (args, sentence) in [
        (&["tenants", "--load", "0"][..], "above 0 and at most 1"),
        (&["tenants", "--machines", "5", "--simulated", "6"], "no more than there are"),
        (&["validate", "--out", "/dev/null/here"], "making /dev/null/here"),
        (&["map", "--out", "x.svg", "--volume", "/dev/null"], "only an emulated SSD"),
        (&["map", "--out", "x.svg", "--volume", "emulated:/nowhere/drive"], "/nowhere/drive"),
    ] {
        let text = refused(args);
        assert!(text.contains(sentence), "{args:?}: {text}");
    }
}
