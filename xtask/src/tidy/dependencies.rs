//! Checks that every direct dependency has a line in `deny.toml` that says why it is needed, and
//! that every such line names a dependency.

use std::collections::{BTreeMap, BTreeSet};

use super::{Complaints, File};

const REASONS: &str = "deny.toml";
const OURS: &str = "slimio-";

pub(super) fn check(files: &[File], complaints: &mut Complaints) {
    let mut users: BTreeMap<&str, &str> = BTreeMap::new();
    for file in files.iter().filter(|file| file.path.ends_with("Cargo.toml")) {
        for name in dependencies_of(&file.text).filter(|name| !name.starts_with(OURS)) {
            users.entry(name).or_insert(&file.path);
        }
    }
    let Some(reasons_file) = files.iter().find(|file| file.path == REASONS) else {
        complaints.push(format!("{REASONS}: this file is missing"));
        return;
    };
    let reasons: BTreeSet<&str> = reasons_in(&reasons_file.text).collect();
    for (name, path) in &users {
        if !reasons.contains(name) {
            complaints.push(format!("{path}: {REASONS} has no line `# {name}: reason`"));
        }
    }
    for name in reasons.iter().filter(|name| !users.contains_key(*name)) {
        complaints.push(format!("{REASONS}: nothing uses {name} any more"));
    }
}

/// Names declared in any `dependencies` section of a manifest.
fn dependencies_of(manifest: &str) -> impl Iterator<Item = &str> {
    let mut in_section = false;
    manifest.lines().filter_map(move |line| {
        if let Some(header) = line.strip_prefix('[') {
            in_section = header.trim_end().ends_with("dependencies]");
            return None;
        }
        let end = line.find(['=', '.', ' '])?;
        (in_section && !line.starts_with('#')).then_some(&line[..end])
    })
}

/// Names from the lines `# name: reason` before the first section.
fn reasons_in(text: &str) -> impl Iterator<Item = &str> {
    text.lines().take_while(|line| !line.starts_with('[')).filter_map(|line| {
        let (name, reason) = line.strip_prefix("# ")?.split_once(": ")?;
        (!name.contains(' ') && !reason.trim().is_empty()).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dependency_without_a_reason_and_a_reason_without_a_dependency() {
        let manifest = "[package]\nname = \"x\"\n\n[dependencies]\nlibc = \"0.2\"\n\
                        slimio-ring.workspace = true\n[dev-dependencies]\nproptest.workspace = true\n";
        let deny = "# Reasons, one line each:\n# libc: system calls\n# rand: gone\n[bans]\n";
        let files = [
            File { path: "crates/x/Cargo.toml".into(), text: manifest.into() },
            File { path: REASONS.into(), text: deny.into() },
        ];
        let mut complaints = Complaints::new();
        check(&files, &mut complaints);
        assert_eq!(
            complaints,
            [
                "crates/x/Cargo.toml: deny.toml has no line `# proptest: reason`",
                "deny.toml: nothing uses rand any more",
            ]
        );
    }
}
