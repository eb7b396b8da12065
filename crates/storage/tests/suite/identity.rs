//! A volume stores the identity of its device, so a copy on another device is opened only on
//! request.

use crate::common::{Client, Kind, SimMedia, formatted, options, reopen};
use crate::fixture;
use slimio_sim::SimConfig;
use slimio_storage::{Error, Policy, RecoverOptions, Superblock, SuperblockCopy, inspect, layout};

const THIS: &str = "nvme serial S1234 namespace 1";
const OTHER: &str = "nvme serial S9999 namespace 1";

/// Makes a volume with one record on a device with the given identity.
fn made_on(identity: Option<&str>) -> SimMedia {
    let mut media = formatted(SimConfig::default(), Kind::Device);
    media.identity = identity.map(str::to_owned);
    let (volume, _) = reopen(&mut media, &options(Policy::Always)).expect("the volume opens");
    let mut client = Client::new(volume, media.disk.clone(), 0);
    assert!(client.append(&(0, b"kept".to_vec())));
    client.settle();
    media
}

fn superblock(media: &mut SimMedia) -> Superblock {
    inspect(media)
        .expect("the volume can be inspected")
        .superblock
        .expect("a superblock is in force")
}

fn opens(media: &mut SimMedia, options: &RecoverOptions) -> Result<Option<String>, Error> {
    let (volume, recovered) = reopen(media, options)?;
    assert_eq!(recovered, [(0, b"kept".to_vec())]);
    Ok(volume.report.other_device)
}

#[test]
fn a_copy_on_another_device_is_refused_and_unchanged() {
    let mut media = made_on(Some(THIS));
    let before = superblock(&mut media);
    assert_eq!(before.identity, THIS);
    for (identity, said) in [
        (Some(OTHER), "this device is nvme serial S9999 namespace 1"),
        (None, "this device reports no identity"),
    ] {
        media.identity = identity.map(str::to_owned);
        let refused =
            opens(&mut media, &options(Policy::Always)).expect_err("the volume is a copy");
        let wanted = format!("the volume is on another device ({THIS}); {said}");
        assert_eq!(refused.to_string(), wanted);
        assert_eq!(superblock(&mut media), before);
    }
    media.identity = Some(THIS.into());
    assert_eq!(opens(&mut media, &options(Policy::Always)), Ok(None));
}

#[test]
fn a_copy_that_is_accepted_is_at_home_from_then_on() {
    let accepted = RecoverOptions { accept_device: true, ..options(Policy::Always) };
    for other in [Some(OTHER), None] {
        let mut media = made_on(Some(THIS));
        media.identity = other.map(str::to_owned);
        assert_eq!(opens(&mut media, &accepted), Ok(Some(THIS.into())));
        assert_eq!(superblock(&mut media).identity, other.unwrap_or_default());
        assert_eq!(opens(&mut media, &options(Policy::Always)), Ok(None));
    }
}

/// The volume has no identity if it was made before identities were stored, or if the kernel did
/// not report one.
#[test]
fn a_volume_without_an_identity_takes_that_of_its_device() {
    let mut media = made_on(None);
    assert_eq!(superblock(&mut media).identity, "");
    media.identity = Some(THIS.into());
    assert_eq!(opens(&mut media, &options(Policy::Always)), Ok(None));
    media.identity = Some(OTHER.into());
    assert!(matches!(
        opens(&mut media, &options(Policy::Always)),
        Err(Error::OtherDevice { made_on, .. }) if made_on == THIS
    ));
}

/// If one copy of the superblock kept the previous format version, an older program would open the
/// volume with that copy, and would ignore the identity.
#[test]
fn no_copy_of_the_version_before_is_left_when_an_identity_is_taken() {
    let image = fixture::image(layout::FORMAT_VERSION_EXTENTS);
    let mut media = SimMedia::from_image(SimConfig::default(), Kind::Device, &image);
    media.identity = Some(THIS.into());
    reopen(&mut media, &options(Policy::Always)).expect("the volume opens");
    for copy in inspect(&mut media).expect("the volume can be inspected").copies {
        let SuperblockCopy::Valid(superblock, _) = copy else { panic!("{copy:?}") };
        assert_eq!(superblock.identity, THIS);
    }
}

#[test]
fn an_identity_of_any_length_is_kept_as_far_as_there_is_room() {
    let long = format!("serial \n{}", "x".repeat(400));
    let mut media = made_on(Some(&long));
    assert_eq!(superblock(&mut media).identity.len(), 256);
    assert_eq!(opens(&mut media, &options(Policy::Always)), Ok(None));
}
