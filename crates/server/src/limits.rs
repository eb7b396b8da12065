//! Limits of this process, from a source that no system-call filter blocks.

/// The soft and the hard limit of the number of files that this process may have open; `u64::MAX`
/// means no limit. Returns `None` if the kernel does not tell.
pub fn open_files_limit() -> Option<(u64, u64)> {
    // Reads a file, because a filter (seccomp) may refuse getrlimit(2), and the available wrappers
    // of getrlimit(2) then panic.
    parse(&std::fs::read_to_string("/proc/self/limits").ok()?)
}

/// Parses the line `Max open files` of proc_pid_limits(5).
fn parse(text: &str) -> Option<(u64, u64)> {
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    let mut values = line.split_whitespace().map(|value| match value {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    });
    Some((values.next()??, values.next()??))
}

#[cfg(test)]
mod tests {
    use rustix::process::{Resource, getrlimit};

    use super::*;

    #[test]
    fn the_limit_of_open_files_is_the_kernels() {
        let limit = getrlimit(Resource::Nofile);
        let expected = (limit.current.unwrap_or(u64::MAX), limit.maximum.unwrap_or(u64::MAX));
        assert_eq!(open_files_limit(), Some(expected));
        let without = "Limit  Soft Limit  Hard Limit  Units\nMax open files  unlimited  9  files\n";
        assert_eq!(parse(without), Some((u64::MAX, 9)));
        assert_eq!(parse("Max file size  1  2  bytes\n"), None);
    }
}
