//! Random damage to files with values of every type.

use slimio_rdb::{ValueType, Version};
use slimio_testing::damage::{damage, fuzz};

use crate::hostile::read;
use crate::maker::Maker;

/// Files with values of several types. The files have no checksum, because a reader that checks one
/// would find all damage by the checksum alone.
fn files() -> Vec<Vec<u8>> {
    let mut files = Vec::new();
    for number in [9, 12, 80] {
        let version = Version::to_read(number).unwrap();
        let mut makers: Vec<Maker> = (0..6).map(|_| Maker::new(version)).collect();
        makers[0].old_types();
        makers[1].listpack_types();
        makers[2].streams(&[ValueType::Stream, ValueType::Stream2, ValueType::Stream3]);
        if number == 80 {
            makers[3].valkey_types();
        } else {
            makers[3].newest_types();
        }
        makers[4].modules_and_functions();
        files.extend(makers.iter().map(Maker::file));
    }
    for file in &mut files {
        let end = file.len();
        file[end - 8..].fill(0);
    }
    files
}

/// The reader does not panic, does not run forever, and takes little memory.
#[test]
fn random_damage_is_survived() {
    let files = files();
    fuzz(|rng| {
        let mut file = files[rng.usize(..files.len())].clone();
        damage(rng, &mut file, &files);
        if let Err(error) = read(&file) {
            assert!(!error.to_string().is_empty());
        }
    });
}
