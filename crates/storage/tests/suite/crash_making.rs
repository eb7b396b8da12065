//! Cuts power or kills the process at every operation of making a volume, and again when the making
//! is resumed. The medium must then hold one of four things: nothing, the old volume, the new
//! volume, or a volume that is recognised as unfinished.

use crate::common::{Client, Collector, Kind, SMALL, Script, SimMedia, options, reopen};
use slimio_sim::{Image, Limits, SimConfig};
use slimio_storage::{
    Area, Error, FormatOptions, Media, Policy, SuperblockCopy, VolumeId, format, inspect,
    is_unfinished, recover,
};

const FIRST: Limits = Limits { exhaustive_max: 4, random_count: 4, torn: true };
const SECOND: Limits = Limits { exhaustive_max: 2, random_count: 2, torn: true };

/// How often each outcome was found.
#[derive(Debug, Default)]
struct Counts {
    nothing: usize,
    unfinished: usize,
    old: usize,
    new: usize,
}

fn open_image(kind: Kind, image: &Image) -> SimMedia {
    let mut media = SimMedia::from_image(SimConfig::default(), kind, image);
    media.is_feigned = true;
    media
}

/// Resumes making the volume, as the server or the tool does when it is run again after an
/// interruption.
fn go_on(media: &mut SimMedia, layout: &FormatOptions) -> Result<(), Error> {
    let is_there = media.disk.space_count() > 0;
    let path = is_there.then(|| media.open_path(Area::Superblock).expect("the area exists"));
    let is_unfinished = path.is_some_and(|mut path| is_unfinished(&mut *path) == Ok(true));
    format(media, &FormatOptions { replace: layout.replace && !is_unfinished, ..*layout })
}

/// Checks that the image holds an allowed outcome. Returns whether a volume is still to be made.
fn check(kind: Kind, image: &Image, old: &Script, counts: &mut Counts, context: &str) -> bool {
    let context = format!("{context}, {}", image.origin);
    let mut media = open_image(kind, image);
    let mut path = media.open_path(Area::Superblock).expect("the area exists");
    let is_unfinished = is_unfinished(&mut *path).expect("the area is long enough");
    drop(path);
    let copies = inspect(&mut media).expect("an unfinished volume can be inspected").copies;
    // On a medium that holds nothing, a copy of the superblock may be other than `Empty`, because
    // this disk does not return zeros for blocks that were never written.
    let is_nothing = !is_unfinished && !copies.iter().any(SuperblockCopy::has_magic);
    if is_unfinished || is_nothing {
        counts.unfinished += usize::from(is_unfinished);
        counts.nothing += usize::from(is_nothing);
        assert!(!is_nothing || old.is_empty(), "{context}: the old volume is lost");
        return true;
    }
    let mut media = open_image(kind, image);
    let mut found = Collector::default();
    if let Err(error) = recover(&mut media, &options(Policy::Always), &mut found) {
        panic!("{context}: {error}: {copies:?}");
    }
    let is_old = found.records == *old && !old.is_empty();
    assert!(is_old || found.records.is_empty(), "{context}: {} records", found.records.len());
    counts.old += usize::from(is_old);
    counts.new += usize::from(!is_old);
    false
}

/// Makes the volume on the medium that `start` returns, and crashes at every operation of the
/// making. The first entry of `lives` limits how many images are checked per crash. If the
/// volume is still to be made on an image, this image is explored in the same way, with the rest of
/// `lives`.
fn explore(
    start: &dyn Fn() -> SimMedia,
    layout: &FormatOptions,
    old: &Script,
    lives: &[Limits],
    counts: &mut Counts,
) {
    let Some((limits, later_lives)) = lives.split_first() else { return };
    for crash_point in 0.. {
        let mut media = start();
        let (disk, kind) = (media.disk.clone(), media.kind);
        disk.crash_after(crash_point);
        let made = go_on(&mut media, layout);
        let Some(crash) = disk.crashed() else {
            made.unwrap_or_else(|error| panic!("making the volume can't be resumed: {error}"));
            let mut media = start();
            go_on(&mut media, layout).expect("the same call has just succeeded");
            let (volume, found) =
                reopen(&mut media, &options(Policy::Always)).expect("the volume opens");
            assert_eq!(found, Script::new());
            let mut client = Client::new(volume, media.disk.clone(), 0);
            assert!(client.append(&(0, b"first".to_vec())));
            client.settle();
            assert_eq!(client.durable, 1);
            break;
        };
        let images = crash.power_images(limits).into_iter().chain(crash.process_images(limits));
        for image in images {
            let context = format!("crash point {crash_point}, {} lives left", later_lives.len());
            if check(kind, &image, old, counts, &context) {
                explore(&|| open_image(kind, &image), layout, old, later_lives, counts);
            }
        }
    }
}

#[test]
fn a_volume_whose_making_was_interrupted_is_made() {
    for kind in [Kind::Files, Kind::Device] {
        let mut counts = Counts::default();
        let start = || SimMedia::new(SimConfig::default(), kind);
        explore(&start, &SMALL, &Script::new(), &[FIRST, SECOND], &mut counts);
        println!("{kind:?}: {counts:?}");
        assert!(counts.nothing > 0 && counts.new > 0, "{counts:?}");
        assert!(counts.unfinished > 500, "the enumeration must not shrink: {counts:?}");
    }
}

#[test]
fn a_volume_is_replaced_as_a_whole_or_not_at_all() {
    let records = vec![(0, b"one".to_vec()), (1, vec![7; 9000])];
    for kind in [Kind::Files, Kind::Device] {
        let mut media = SimMedia::new(SimConfig::default(), kind);
        media.is_feigned = true;
        format(&mut media, &SMALL).expect("the simulated disk has room for the volume");
        let (volume, _) = reopen(&mut media, &options(Policy::Always)).expect("the volume opens");
        let mut client = Client::new(volume, media.disk.clone(), 0);
        client.write(&records, 1);
        client.settle();
        let only = Limits { exhaustive_max: 0, random_count: 0, torn: false };
        let image = media.disk.crash_now().process_images(&only).swap_remove(0);
        let layout = FormatOptions { volume_id: VolumeId(99), replace: true, ..SMALL };
        let mut counts = Counts::default();
        explore(&|| open_image(kind, &image), &layout, &records, &[FIRST, SECOND], &mut counts);
        println!("{kind:?}: {counts:?}");
        assert!(counts.old > 0 && counts.new > 0 && counts.nothing == 0, "{counts:?}");
        assert!(counts.unfinished > 500, "the enumeration must not shrink: {counts:?}");
    }
}
