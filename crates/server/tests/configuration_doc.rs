//! Checks that `docs/configuration.md` matches the table of directives. With `UPDATE_EXPECT=1` in
//! the environment, the test first rewrites the document.
#![expect(clippy::unwrap_used, reason = "a test fails if it cannot go on")]

use std::fmt::Write as _;
use std::path::Path;

use slimio_server::config::{DIRECTIVES, Directive, Effect, ValueKind};

const HEAD: &str = "# Configuration

A test renders this file from the table in `crates/server/src/config/table.rs`. Change the table, then
run `cargo x docs`.

`slimio serve [CONF] [--directive value]…`, or the same without `serve`, reads a file in the format of
`redis.conf`, then flags in the format of `redis-server`. Flags override the file. Each line of the file
has one directive: its name, then words separated by blanks. A word that contains blanks needs quotes.
`#` begins a comment. `include FILE` reads another file in place of this line, or all files that match a
pattern, as in `include conf.d/*.conf`; a pattern without a match is no error. `dir` takes effect from its
line on, also for a later `include`. An unknown directive is refused, and the error names the nearest known
one.

`CONFIG GET` shows the values in force. `CONFIG SET` changes them where the table says so. Sizes take
the units of Redis: `1k` is 1000 bytes, `1kb` is 1024, and likewise with `m` and `g`.

A directive of Redis 7.0 has the same name in SlimIO, and the same meaning except for the
differences in the column `other than Redis`.
";

fn render() -> String {
    let mut text = HEAD.to_owned();
    text.push_str(
        "
## Directives that work

| directive | default | values | at run time | meaning | other than Redis |
|---|---|---|---|---|---|
",
    );
    for row in having(|effect| matches!(effect, Effect::Live | Effect::AtStart | Effect::Once)) {
        let changes = if row.effect == Effect::Live { "yes" } else { "no" };
        let Directive { doc, differs, .. } = row;
        let (names, default, values) = (names(row), default(row), values(row.kind));
        line(&mut text, &[&names, &default, &values, changes, doc, differs]);
    }
    text.push_str(
        "
## Directives that can only have their default

Anybody who sets one of these directives relies on its effect. So any value but the default is refused, and
the error has the reason or the remedy from the last column.

| directive | only value | why, or what to do instead |
|---|---|---|
",
    );
    for row in having(|effect| matches!(effect, Effect::OnlyDefault(_))) {
        let Effect::OnlyDefault(why) = row.effect else { unreachable!() };
        line(&mut text, &[&names(row), &default(row), why]);
    }
    text.push_str(
        "
## Directives that are accepted but have no effect

Nothing breaks if these directives have no effect. Their values are kept for `CONFIG GET` and
`CONFIG REWRITE`, and a value other than the default causes a warning in the log.

| directive | default | values | other than Redis |
|---|---|---|---|
",
    );
    for row in having(|effect| effect == Effect::None) {
        line(&mut text, &[&names(row), &default(row), &values(row.kind), row.differs]);
    }
    text
}

fn having(is_wanted: impl Fn(Effect) -> bool) -> impl Iterator<Item = &'static Directive> {
    DIRECTIVES.iter().filter(move |row| is_wanted(row.effect))
}

fn line(text: &mut String, cells: &[&str]) {
    for cell in cells {
        assert!(!cell.contains('|'), "{cell} has a | that ends the cell");
        write!(text, "| {cell} ").unwrap();
    }
    text.push_str("|\n");
}

fn names(row: &Directive) -> String {
    if row.alias.is_empty() {
        format!("`{}`", row.name)
    } else {
        format!("`{}`, `{}`", row.name, row.alias)
    }
}

fn default(row: &Directive) -> String {
    if row.default.is_empty() { "`\"\"`".into() } else { format!("`{}`", row.default) }
}

fn values(kind: ValueKind) -> String {
    let is_bound = |bound: i64| bound.unsigned_abs() < i32::MAX as u64;
    match kind {
        ValueKind::Int(min, max) if is_bound(min) && is_bound(max) => format!("{min} to {max}"),
        ValueKind::Int(min, _) if is_bound(min) => format!("{min} or more"),
        ValueKind::Int(..) => "a number".into(),
        ValueKind::Memory(0, i64::MAX) => "a size".into(),
        ValueKind::Memory(min, i64::MAX) => format!("{} or more", size(min)),
        ValueKind::Memory(min, max) => format!("{} to {}", size(min), size(max)),
        ValueKind::MemoryOrPercent => "a size, or a percentage".into(),
        ValueKind::Bool => "yes, no".into(),
        ValueKind::Choice(words) => words.join(", "),
        ValueKind::Text | ValueKind::Utf8 => "a word".into(),
        ValueKind::Words => "words".into(),
        ValueKind::Percentiles => "numbers from 0 to 100".into(),
        ValueKind::SavePoints => "seconds and changes, once or several times".into(),
        ValueKind::Octal => "octal".into(),
        ValueKind::OutputLimits => {
            "class, hard size, soft size, seconds; once or several times".into()
        }
    }
}

fn size(bytes: i64) -> String {
    for (shift, unit) in [(30, "gb"), (20, "mb"), (10, "kb")] {
        if bytes % (1 << shift) == 0 {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

#[test]
fn configuration_md_says_what_the_table_does() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let rendered = render();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, &rendered).unwrap();
    }
    let found = std::fs::read_to_string(&path).expect("docs/configuration.md exists");
    assert_eq!(found, rendered, "run `cargo x docs`");
}
