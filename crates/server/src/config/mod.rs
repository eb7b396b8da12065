//! Configuration: a `redis.conf`-style file, `--directive value` flags, `CONFIG GET` and `SET`.
//!
//! A directive is one row of [`DIRECTIVES`]; nothing else in the crate defines names, defaults or
//! bounds. Other code looks up a value by the directive's name. It does so at start and after a
//! change of the value, but never per request.

mod file;
mod rewrite;
mod table;
mod value;
mod words;

pub use rewrite::Rewrite;
pub use table::{
    APPENDFSYNC, Access, DIRECTIVES, Directive, Effect, IO_BACKEND, LOGLEVEL, VOLUME_FALLBACK,
};
pub use value::{OUTPUT_CLASSES, OutputLimit, Value, ValueKind};

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use words::split;

/// Why a configuration was not accepted: a sentence that says where the error is and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(pub String);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

/// The value of every directive.
#[derive(Clone, Debug)]
pub struct Config {
    values: Vec<Value>,
    /// Directives that were set although they have no effect here. A warning is logged once for
    /// each.
    inert: Vec<&'static str>,
    /// Path of the file that was read, for INFO; empty if no file was read.
    file: PathBuf,
    /// `save` was set, so further `save` directives add save points to its value.
    is_save_set: bool,
    /// `maxmemory` was set, perhaps to 0 (no limit).
    is_memory_set: bool,
    /// Directives whose value is not possible here, each with its error. A later line or flag may
    /// still correct the value.
    refused: Vec<(usize, ConfigError)>,
}

/// Value of `save` when it is not set and there is no log.
const SAVE_WITHOUT_LOG: &str = "3600 1 300 100 60 10000";

impl Default for Config {
    fn default() -> Self {
        let values = DIRECTIVES
            .iter()
            .map(|row| {
                let words = split(row.default.as_bytes()).unwrap_or_default();
                let words = if words.is_empty() || matches!(row.kind, ValueKind::Text) {
                    vec![row.default.into()]
                } else {
                    words
                };
                row.kind.parse(&words, None).expect("defaults are checked by a test")
            })
            .collect();
        Self {
            values,
            inert: Vec::new(),
            file: PathBuf::new(),
            is_save_set: false,
            is_memory_set: false,
            refused: Vec::new(),
        }
    }
}

impl Config {
    /// Reads the arguments of `slimio serve`: an optional file, then `--directive value…`.
    ///
    /// # Errors
    /// The first error, with its place.
    pub fn from_args(args: &[impl AsRef<OsStr>]) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        let args: Vec<&[u8]> = args.iter().map(|arg| arg.as_ref().as_bytes()).collect();
        let mut rest = &args[..];
        // A single - is standard input.
        let is_file = |arg: &&&[u8]| !arg.starts_with(b"-") || arg.len() == 1;
        if let Some(file) = args.first().filter(is_file) {
            config.read_file(Path::new(OsStr::from_bytes(file)))?;
            rest = &args[1..];
        }
        while let Some((flag, behind)) = rest.split_first() {
            let Some(flag_text) = flag.strip_prefix(b"--") else {
                return Err(ConfigError(format!(
                    "unexpected argument '{}': directives are given as --directive value",
                    String::from_utf8_lossy(flag)
                )));
            };
            let (name, mut words) = flag_and_values(flag_text)?;
            let place = |e: ConfigError| ConfigError(format!("argument --{name}: {}", e.0));
            // As in Redis, the argument after a bare name is its value, even if it begins with
            // `--`. But if the argument consists of `--` and the name of a directive, it is the
            // next flag.
            let is_directive = |name: &[u8]| find(&String::from_utf8_lossy(name)).is_some();
            let is_value = |a: &&&[u8]| !a.strip_prefix(b"--").is_some_and(is_directive);
            let first = behind.first().filter(is_value).filter(|_| words.is_empty());
            let from = usize::from(first.is_some());
            let count = from + behind[from..].iter().take_while(|a| !is_flag(a)).count();
            words.extend(behind[..count].iter().map(|word| word.to_vec()));
            // A single argument may hold several words, as in --save "60 1".
            config.apply(&name, &words, 0).map_err(place).or_else(|e| config.put_off(&name, e))?;
            rest = &behind[count..];
        }
        if let Some((_, error)) = config.refused.drain(..).next() {
            return Err(error);
        }
        if !config.is_save_set && !config.yes("appendonly") {
            config.set("save", SAVE_WITHOUT_LOG)?;
        }
        Ok(config)
    }

    /// For a directive that can only have its default, keeps the error until everything is read,
    /// because a later line or flag may correct the value. Other errors are returned.
    fn put_off(&mut self, name: &str, error: ConfigError) -> Result<(), ConfigError> {
        match find(name) {
            Some(index) if matches!(DIRECTIVES[index].effect, Effect::OnlyDefault(_)) => {
                self.refused.push((index, error));
                Ok(())
            }
            _ => Err(error),
        }
    }

    /// Applies one directive of a file or flag.
    fn apply(&mut self, name: &str, words: &[Vec<u8>], depth: usize) -> Result<(), ConfigError> {
        if name.eq_ignore_ascii_case("include") {
            return self.include(words, depth);
        }
        let index = find(name).ok_or_else(|| ConfigError(unknown(name)))?;
        let row = &DIRECTIVES[index];
        // As in Redis, `save` without a value means `save ""`. A repeated `save 60 1` adds to the
        // earlier lines.
        let mut words = std::borrow::Cow::Borrowed(words);
        if words.is_empty() {
            if !matches!(row.kind, ValueKind::SavePoints) {
                return Err(ConfigError(format!("{} needs a value", row.name)));
            }
            words = vec![Vec::new()].into();
        }
        if matches!(row.kind, ValueKind::SavePoints) {
            let clears = words.iter().all(Vec::is_empty);
            if std::mem::replace(&mut self.is_save_set, true) && !clears {
                let old = self.text(row.name).split_whitespace().map(Vec::from);
                let new = match &*words {
                    [one] => one.split(|byte| *byte == b' ').map(<[u8]>::to_vec).collect(),
                    several => several.to_vec(),
                };
                words = old.chain(new).collect();
            }
        }
        if row.name == "dir"
            && let [dir] = &mut words.to_mut()[..]
        {
            // The path is resolved now, because Redis changes to the directory of each `dir` line
            // as soon as it reads the line.
            *dir = self.in_dir(dir).into_os_string().into_vec();
        }
        self.is_memory_set |= row.name == "maxmemory";
        let value = row
            .kind
            .parse(&words, Some(&self.values[index]))
            .map_err(|e| ConfigError(format!("{}: {e}", row.name)))?;
        self.put(index, value).map_err(|e| ConfigError(format!("{} {e}", row.name)))
    }

    fn put(&mut self, index: usize, value: Value) -> Result<(), String> {
        let row = &DIRECTIVES[index];
        if self.values[index] == value {
            self.refused.retain(|(refused, _)| *refused != index);
            return Ok(());
        }
        match row.effect {
            Effect::OnlyDefault(why) => {
                let default = if row.default.is_empty() { "\"\"" } else { row.default };
                return Err(format!("can only be {default}: {why}"));
            }
            Effect::None if !self.inert.contains(&row.name) => self.inert.push(row.name),
            _ => {}
        }
        self.values[index] = value;
        Ok(())
    }

    /// `CONFIG SET` of pairs: sets all of them or none. Returns the names of the directives that
    /// were set.
    ///
    /// # Errors
    /// The text of the error reply, without its `ERR`.
    pub fn set_pairs(&mut self, pairs: &[(String, Vec<u8>)]) -> Result<Vec<&'static str>, String> {
        let failed = |name: &str, why: &str| {
            format!("CONFIG SET failed (possibly related to argument '{name}') - {why}")
        };
        // As in Redis, an alias counts as another parameter. If a request sets a directive by both
        // names, the last value applies.
        let mut found: Vec<(usize, &str)> = Vec::with_capacity(pairs.len());
        for (name, _) in pairs {
            let index = find(name).ok_or_else(|| {
                format!("Unknown option or number of arguments for CONFIG SET - '{name}'")
            })?;
            let row = &DIRECTIVES[index];
            if row.access == Access::Protected && self.choice("enable-protected-configs") == "no" {
                return Err(failed(name, "can't set protected config"));
            }
            let is_fixed = row.access == Access::Fixed;
            if is_fixed || matches!(row.effect, Effect::AtStart | Effect::Once) {
                return Err(failed(name, "can't set immutable config"));
            }
            let names = [row.name, row.alias];
            let own = names.into_iter().find(|own| own.eq_ignore_ascii_case(name));
            let parameter = (index, own.unwrap_or(row.name));
            if found.contains(&parameter) {
                return Err(failed(name, "duplicate parameter"));
            }
            found.push(parameter);
        }
        let mut changed = self.clone();
        for (&(index, name), (_, value)) in found.iter().zip(pairs) {
            let old = &changed.values[index];
            let value = DIRECTIVES[index]
                .kind
                .parse(std::slice::from_ref(value), Some(old))
                .map_err(|why| failed(name, &why))?;
            changed.put(index, value).map_err(|why| failed(name, &why))?;
        }
        *self = changed;
        Ok(found.into_iter().map(|(index, _)| DIRECTIVES[index].name).collect())
    }

    /// `CONFIG GET` of the directives whose name or alias `matches`.
    pub fn get_matching(
        &self,
        mut matches: impl FnMut(&str) -> bool,
    ) -> Vec<(&'static str, Vec<u8>)> {
        let mut found = Vec::new();
        for (row, value) in DIRECTIVES.iter().zip(&self.values) {
            for name in [row.name, row.alias] {
                if !name.is_empty() && matches(name) {
                    found.push((name, row.kind.render(value)));
                }
            }
        }
        found
    }

    fn value(&self, name: &str) -> &Value {
        let index = find(name).unwrap_or_else(|| panic!("no row for directive {name}"));
        &self.values[index]
    }

    /// Value of an `Int`, `Memory` or `Octal` directive.
    pub fn int(&self, name: &str) -> i64 {
        match self.value(name) {
            Value::Int(value) => *value,
            other => panic!("the value of {name} is not a number: {other:?}"),
        }
    }

    /// Value of a `Bool` directive.
    pub fn yes(&self, name: &str) -> bool {
        match self.value(name) {
            Value::Bool(value) => *value,
            other => panic!("{name} is not yes or no: {other:?}"),
        }
    }

    /// Value of a `Choice` directive, as its word.
    pub fn choice(&self, name: &str) -> &'static str {
        let index = find(name).unwrap_or_else(|| panic!("no row for directive {name}"));
        match (&DIRECTIVES[index].kind, &self.values[index]) {
            (ValueKind::Choice(words), Value::Choice(chosen)) => words[*chosen],
            (_, other) => panic!("the value of {name} is not a choice: {other:?}"),
        }
    }

    /// Value of a `Utf8`, `Words`, `Percentiles` or `SavePoints` directive.
    pub fn text(&self, name: &str) -> &str {
        match self.value(name) {
            Value::Text(value) => value,
            other => panic!("the value of {name} is not text: {other:?}"),
        }
    }

    /// Value of a `Text` directive.
    pub fn bytes(&self, name: &str) -> &[u8] {
        match self.value(name) {
            Value::Bytes(value) => value,
            other => panic!("the value of {name} is not bytes: {other:?}"),
        }
    }

    /// Value of a `Text` directive, as a path.
    pub fn path(&self, name: &str) -> &Path {
        Path::new(OsStr::from_bytes(self.bytes(name)))
    }

    /// The output limit of normal clients.
    pub fn output_limit_normal(&self) -> OutputLimit {
        match self.value("client-output-buffer-limit") {
            Value::Limits(limits) => limits[0],
            other => panic!("the value is not a list of output limits: {other:?}"),
        }
    }

    /// Directives that were set although they have no effect here.
    pub fn without_effect(&self) -> &[&'static str] {
        &self.inert
    }

    /// Path of the file that was read; empty if no file was read.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Sets `maxmemory` to `size` bytes, unless the configuration has set it.
    pub(crate) fn limit_memory(&mut self, size: u64) {
        if !self.is_memory_set {
            let set = self.set("maxmemory", size.to_string());
            set.expect("any size can be set");
        }
    }

    /// Sets a directive as a flag would. Meant for programs that embed the server.
    ///
    /// # Errors
    /// The same as those of [`Config::from_args`].
    pub fn set(&mut self, name: &str, value: impl AsRef<[u8]>) -> Result<(), ConfigError> {
        self.apply(name, &[value.as_ref().to_vec()], 0)
    }
}

/// Splits one argument into the name of the directive and its values. The argument is `--name`,
/// `--name=value`, or `--name value…`, which is read like a line of a file.
fn flag_and_values(flag: &[u8]) -> Result<(String, Vec<Vec<u8>>), ConfigError> {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    if let Some(at) = flag.iter().position(|byte| *byte == b'=')
        && !flag[..at].iter().any(u8::is_ascii_whitespace)
    {
        return Ok((text(&flag[..at]), vec![flag[at + 1..].to_vec()]));
    }
    let words = split(flag)
        .ok_or_else(|| ConfigError(format!("argument --{}: unbalanced quotes", text(flag))))?;
    let mut words = words.into_iter();
    Ok((text(&words.next().unwrap_or_default()), words.collect()))
}

/// Whether an argument is a flag, as opposed to a value like `-2`.
fn is_flag(arg: &[u8]) -> bool {
    arg.strip_prefix(b"--").is_some_and(|rest| !rest.is_empty())
}

fn find(name: &str) -> Option<usize> {
    DIRECTIVES.iter().position(|row| {
        row.name.eq_ignore_ascii_case(name)
            || (!row.alias.is_empty() && row.alias.eq_ignore_ascii_case(name))
    })
}

fn unknown(name: &str) -> String {
    let names = DIRECTIVES.iter().flat_map(|row| [row.name, row.alias]).filter(|n| !n.is_empty());
    match words::nearest(name, names) {
        Some(near) => format!("unknown directive '{name}'; did you mean '{near}'?"),
        None => format!("unknown directive '{name}'"),
    }
}

#[cfg(test)]
mod tests;
