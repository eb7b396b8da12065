//! System calls on a program's log have the same results with and without the short path. The short
//! path overwrites the log's blocks on the device directly.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{Place, text};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/shortcut/calls.py");
const COUNT: &str = "250";
/// Time limit for all calls of a script. A script exceeds the limit if one of its calls waits until
/// the kernel takes a lease away from its holder, which the kernel does after 45 s by default.
const LONGEST: Duration = Duration::from_secs(40);
const SEEDS: usize = 6;

#[test]
fn a_program_sees_what_it_would_see_otherwise() {
    let Some(place) = Place::new() else { return };
    for _ in 0..SEEDS {
        let seed = fastrand::u64(..1 << 32);
        println!("seed {seed}");
        let seed = seed.to_string();
        let words = |folder: &str| {
            let folder = place.path().join(format!("{folder}-{seed}"));
            std::fs::create_dir(&folder).unwrap();
            [SCRIPT.to_owned(), folder.display().to_string(), seed.clone(), COUNT.to_owned()]
        };
        let stock = Command::new("python3").arg("-B").args(words("stock")).output().unwrap();
        let begin = Instant::now();
        let mut short = place.run(&[&"--match", &"*.log", &"--", &"python3", &"-B"]);
        let short = short.args(words("short")).stdout(Stdio::piped()).output().unwrap();
        assert!(begin.elapsed() < LONGEST, "the calls took {:?}", begin.elapsed());
        let (stock, short) = (text(&stock), text(&short));
        let difference = stock.lines().zip(short.lines()).find(|(stock, short)| stock != short);
        assert_eq!(difference, None, "lines differ without and with the short path");
        assert_eq!(stock.len(), short.len());
        assert!(place.stages().is_empty());
    }
    assert!(place.said().contains("written by the short path"), "{}", place.said());
}
