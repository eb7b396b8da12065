//! Tests of mapped files, on real files.

use std::os::unix::fs::MetadataExt;

use super::*;

const SIZE: usize = 8 * LBA_SIZE;

fn create(path: &Path, size: usize) -> Result<MappedFile, OpenError> {
    // SAFETY: only this test uses the file and its directory.
    unsafe { MappedFile::create(path, size) }
}

fn open(path: &Path) -> Result<MappedFile, OpenError> {
    // SAFETY: only this test uses the file and its directory.
    unsafe { MappedFile::open(path) }
}

#[test]
fn what_is_stored_is_in_the_file_at_once() {
    let directory = tempfile::tempdir().expect("a directory for the test");
    let path = directory.path().join("buffers");
    let mut mapped = create(&path, SIZE).expect("there is room");
    let mut buffers = mapped.buffers(2 * LBA_SIZE);
    assert_eq!(buffers.len(), 4);
    for (index, buffer) in buffers.iter_mut().enumerate() {
        assert_eq!(buffer.index(), Some(index));
        assert_eq!(buffer.len_lbas(), 2);
        assert!(buffer.outlives_process());
        buffer.fill(index as u8 + 1);
    }
    let expected: Vec<u8> = (0..SIZE).map(|byte| (byte / (2 * LBA_SIZE)) as u8 + 1).collect();
    assert_eq!(mapped.read_all().expect("the mapping can be read"), expected);
    assert_eq!(std::fs::read(&path).expect("the file can be read")[..SIZE], expected);

    // The buffers keep the mapping alive after the `MappedFile` is dropped. Bytes that are stored
    // after the drop are in the file, too.
    drop(mapped);
    buffers[3].fill(9);
    assert!(matches!(open(&path), Err(OpenError::Unsuitable { .. })), "the file is mapped already");
    drop(buffers);
    let second = open(&path).expect("the file exists");
    assert_eq!(second.size(), SIZE);
    assert_eq!(second.read_all().expect("the mapping can be read")[7 * LBA_SIZE], 9);
}

/// How many bytes of a mapped file this process has in its memory.
fn resident(path: &Path) -> usize {
    let maps = std::fs::read_to_string("/proc/self/smaps").expect("Linux has /proc/self/smaps");
    let mut lines = maps.lines().skip_while(|line| !line.ends_with(&*path.to_string_lossy()));
    let rss = lines.find_map(|line| line.strip_prefix("Rss:")).expect("the file is mapped");
    let kib: usize = rss.trim().trim_end_matches(" kB").parse().expect("the kernel shows a number");
    kib * 1024
}

#[test]
fn memory_is_taken_by_what_is_used_and_can_be_let_go() {
    const LARGE: usize = 256 * LBA_SIZE;
    let directory = tempfile::tempdir().expect("a directory for the test");
    let path = directory.path().join("buffers");
    let mut mapped = create(&path, LARGE).expect("there is room");
    assert_eq!(resident(&path), 0);
    let mut buffers = mapped.buffers(LARGE / 4);
    for buffer in &mut buffers {
        buffer.fill(3);
    }
    assert_eq!(resident(&path), LARGE);
    for buffer in &mut buffers[1..] {
        buffer.let_go();
    }
    assert_eq!(resident(&path), LARGE / 4, "three of the four buffers must leave the memory");
    for buffer in &buffers {
        assert!(buffer.iter().all(|&byte| byte == 3), "the contents must come back");
    }
    assert_eq!(resident(&path), LARGE);
}

#[test]
fn nobody_else_may_read_it() {
    let directory = tempfile::tempdir().expect("a directory for the test");
    let path = directory.path().join("buffers");
    let left = directory.path().join("buffers.new");
    std::fs::write(&left, b"part of it").expect("there is room");
    drop(create(&path, SIZE).expect("there is room"));
    let mode = std::fs::metadata(&path).expect("the file exists").mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn making_it_again_empties_it() {
    let directory = tempfile::tempdir().expect("a directory for the test");
    let path = directory.path().join("buffers");
    create(&path, SIZE).expect("there is room").buffers(SIZE)[0].fill(1);
    let again = create(&path, 2 * SIZE).expect("there is room");
    assert_eq!(again.read_all().expect("the mapping can be read"), vec![0; 2 * SIZE]);
}

#[test]
fn a_file_that_can_not_be_made_leaves_the_old_one() {
    let directory = tempfile::tempdir().expect("a directory for the test");
    let path = directory.path().join("buffers");
    create(&path, SIZE).expect("there is room").buffers(SIZE)[0].fill(1);
    let unfinished = directory.path().join("buffers.new");
    std::fs::create_dir(&unfinished).expect("there is room");
    assert!(create(&path, 2 * SIZE).is_err());
    let old = open(&path).expect("the old file exists");
    assert_eq!(old.read_all().expect("the mapping can be read"), vec![1; SIZE]);

    // A process that dies while it makes the file leaves an unfinished file, which must do no harm.
    std::fs::remove_dir(&unfinished).expect("the directory is empty");
    std::fs::write(&unfinished, b"part of it").expect("there is room");
    let new = create(&path, 2 * SIZE).expect("there is room");
    assert_eq!(new.read_all().expect("the mapping can be read"), vec![0; 2 * SIZE]);
    assert!(!unfinished.exists());
}

#[test]
fn one_that_holds_nothing_says_so() {
    let directory = tempfile::tempdir().expect("a directory for the test");
    let path = directory.path().join("buffers");
    drop(create(&path, 0).expect("there is room"));
    let mut none = open(&path).expect("the file exists");
    assert_eq!(none.size(), 0);
    assert!(none.buffers(SIZE).is_empty());
}

#[test]
fn a_range_of_a_file_is_a_part_of_it() {
    let file = tempfile::tempfile().expect("a file for the test");
    file.set_len(4 * SIZE as u64).expect("the file can be made longer");
    let path = Path::new("file");
    let map = || {
        // SAFETY: only this test uses the file, which has no name.
        unsafe { MappedFile::file_range(&file, path, SIZE as u64, SIZE) }.expect("there is room")
    };
    let mut mapped = map();
    mapped.buffers(SIZE)[0].fill(4);
    let mut byte = [0];
    for (offset, expected) in [(SIZE - 1, 0), (SIZE, 4), (2 * SIZE - 1, 4), (2 * SIZE, 0)] {
        file.read_exact_at(&mut byte, offset as u64).expect("the file has this byte");
        assert_eq!(byte, [expected], "the byte at {offset} is wrong");
    }
    drop(mapped);
    assert_eq!(map().buffers(SIZE)[0][5], 4);
}

#[test]
fn an_anonymous_one_does_not_outlive_the_process() {
    let mut mapped = MappedFile::anonymous(SIZE).expect("there is memory");
    let mut buffers = mapped.buffers(SIZE);
    buffers[0][5] = 5;
    assert!(!buffers[0].outlives_process());
    assert_eq!(mapped.read_all().expect("the mapping can be read")[5], 5);
}

#[test]
fn a_file_that_is_not_as_it_was_made_is_refused() {
    let directory = tempfile::tempdir().expect("a directory for the test");
    let path = directory.path().join("buffers");
    assert!(matches!(open(&path), Err(OpenError::Incomplete { .. })));
    drop(create(&path, SIZE).expect("there is room"));
    let whole = std::fs::read(&path).expect("the file exists");
    let file = OpenOptions::new().write(true).open(&path).expect("the file exists");
    for cut in (0..whole.len() as u64).step_by(LBA_SIZE / 2) {
        file.set_len(cut).expect("the length can be set");
        let refused = open(&path);
        assert!(
            matches!(refused, Err(OpenError::Incomplete { .. })),
            "the file is cut to {cut} bytes: {refused:?}"
        );
    }
    std::fs::write(&path, &whole).expect("there is room");
    assert_eq!(open(&path).expect("the file is whole again").size(), SIZE);
    for longer in [1, LBA_SIZE as u64] {
        file.set_len(whole.len() as u64 + longer).expect("the length can be set");
        let refused = open(&path);
        assert!(
            matches!(refused, Err(OpenError::Incomplete { .. })),
            "the file is {longer} bytes longer: {refused:?}"
        );
    }
    // SAFETY: only this test uses the file.
    let refused = unsafe { MappedFile::device_range(&path, 0, SIZE) };
    assert!(matches!(refused, Err(OpenError::Unsuitable { .. })), "{refused:?}");
}

#[test]
fn a_copy_with_holes_can_be_read() {
    let directory = tempfile::tempdir().expect("a directory for the test");
    let path = directory.path().join("buffers");
    let file = File::create(&path).expect("the file can be made");
    file.write_all_at(&[7; LBA_SIZE], 2 * LBA_SIZE as u64).expect("there is room");
    file.write_all_at(&end_block(SIZE), SIZE as u64).expect("there is room");
    let mut mapped = open(&path).expect("the file has its length and its last block");
    assert_eq!(mapped.check_readable(&path), Ok(()));
    let buffers = mapped.buffers(LBA_SIZE);
    for (index, buffer) in buffers.iter().enumerate() {
        assert_eq!(buffer[..], [if index == 2 { 7 } else { 0 }; LBA_SIZE]);
        assert_eq!(buffer.faults(), Faults::default());
    }
}

#[test]
fn what_can_not_be_read_is_an_error_in_words() {
    let directory = tempfile::tempdir().expect("a directory for the test");
    let path = directory.path().join("buffers");
    let mapped = create(&path, SIZE).expect("there is room");
    assert_eq!(mapped.check_readable(&path), Ok(()));
    let file = OpenOptions::new().write(true).open(&path).expect("the file exists");
    file.set_len(SIZE as u64 / 2).expect("the length can be set");
    let refused = mapped.check_readable(&path).expect_err("half of the file is gone").to_string();
    assert!(refused.starts_with("reading /"), "{refused}");
}

#[test]
#[should_panic(expected = "already cut into buffers")]
fn cutting_it_twice_is_a_bug() {
    let mut mapped = MappedFile::anonymous(SIZE).expect("there is memory");
    let _first = mapped.buffers(SIZE);
    let _second = mapped.buffers(SIZE);
}
