//! Commands whose replies need not wait for writes. The reply of such a command shows only figures,
//! or it leaves out data that is not durable. The figures change with the data, but they show no
//! key and no value. `docs/durability.md` has the same table.

/// Rows of the command table, and why their replies may leave at once.
pub(crate) const EXEMPT: &[(&[&str], &str)] = &[
    (&["info"], "figures of the server, its data set and its log"),
    (&["memory|stats", "memory|doctor", "memory|malloc-stats"], "figures of memory"),
    (
        &[
            "latency|doctor",
            "latency|graph",
            "latency|histogram",
            "latency|history",
            "latency|latest",
            "latency|reset",
        ],
        "figures of latency",
    ),
    (
        &["client|info", "client|list"],
        "figures of connections; the change of a watched key is shown once the change is durable",
    ),
    (
        &["slowlog|get", "slowlog|len"],
        "slow commands; a command is left out until its effects and the data that it has read are durable",
    ),
    (
        &["bgsave", "bgrewriteaof", "lastsave", "save", "slimio|check", "slimio|pin"],
        "the state of snapshots; a snapshot counts only when the log is durable up to the snapshot's LSN",
    ),
    (&["waitaof"], "how far the log is on stable media"),
    (&["time"], "the time of day"),
];

pub(crate) fn is_exempt(row: &str) -> bool {
    EXEMPT.iter().any(|(rows, _)| rows.contains(&row))
}

#[test]
fn the_document_has_the_same_exemptions() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/durability.md");
    let text = std::fs::read_to_string(path).unwrap();
    let words = |row: &&str| format!("`{}`", row.to_uppercase().replace('|', " "));
    let line = |(rows, why): &(&[&str], &str)| {
        format!("| {} | {why} |", rows.iter().map(words).collect::<Vec<_>>().join(", "))
    };
    let wanted: Vec<String> = EXEMPT.iter().map(line).collect();
    let heads = |line: &&str| line.starts_with("| command |");
    let table = text.lines().skip_while(|line| !heads(line)).skip(2);
    let found: Vec<&str> = table.take_while(|line| line.starts_with('|')).collect();
    assert_eq!(found, wanted, "docs/durability.md must have the rows of the list");
}
