//! Checks that `docs/configuration.md` matches the table of directives. `UPDATE_EXPECT=1` rewrites
//! it.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fmt::Write as _;
use std::path::Path;

use slimio_server::config::{DIRECTIVES, Directive, Effect, ValueKind};

const HEAD: &str = "# Configuration

Rendered from the table in `crates/server/src/config/table.rs` by a test; change that, then run
`cargo x docs`.

`slimio serve [CONF] [--directive value]…`, or the same without `serve`, reads a file in the form of
`redis.conf`, then flags in the form of redis-server's, which win. A file has one directive a line: a name,
and words between blanks; a word with blanks stands in quotes. `#` begins a comment, `include FILE` reads
another file in place, or all that a pattern names, as in `include conf.d/*.conf`: none is no error. `dir`
counts from its line on, for an `include` too. A directive that is not known is refused, and the nearest
known one named.

`CONFIG GET` shows what is in force, `CONFIG SET` changes it where the table says so. Sizes take the
units of Redis: `1k` is 1000 bytes, `1kb` 1024, and so with `m` and `g`.

The names, and what they mean, are those of Redis 7.0 wherever it has one; the last column says what
differs all the same.
";

fn render() -> String {
    let mut text = HEAD.to_owned();
    text.push_str(
        "
## What works

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
## What can only be as it is

Somebody who turns one of these on relies on it, so another value than the default is refused, with
this reason or remedy.

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
## What is accepted and has no effect

Without these nothing breaks: they are kept for `CONFIG GET` and `CONFIG REWRITE`, and setting one to
another value is worth a warning in the log.

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
        assert!(!cell.contains('|'), "{cell} would end its cell");
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
