//! Finds the command of a request, and checks the count and the size of its arguments.

use std::borrow::Cow;

use slimio_keyspace::{Command, Flags, KeyRange};
use slimio_planted::is_planted;
use slimio_resp::{Arg, Args};

use super::{Entry, Run, bare_command, table};

/// An error repeats at most this many bytes of a command's name, and about as many bytes of all the
/// arguments together.
const QUOTED_SIZE_MAX: usize = 128;

/// Of a large argument (a blob), at most this many bytes are compared with command names. Every
/// name is shorter, and an error repeats no more bytes than this.
const WORD_SIZE_MAX: usize = 256;

/// Limit of the number of arguments of a command that does not run in steps, such as a server
/// command or a command with any number of options. There is a limit because each argument takes
/// time, and no other client is served meanwhile.
const ARGS_MAX: usize = 1024;

/// Limit of the bytes of all arguments of a command that works on connections or on the server.
const SERVER_ARGS_SIZE_MAX: usize = 1 << 20;

/// Returns the table row of a request's command, or the error to reply with.
pub(crate) fn find(args: Args<'_>) -> Result<&'static Command<Entry>, NotFound> {
    let name = word(args.get(0));
    let Some(row) = table().lookup(&name) else {
        return Err(NotFound { row: None, text: unknown_command(&name, args) });
    };
    let row = match row.run.run {
        Run::Container(subcommands) if args.len() > 1 => {
            let sub = word(args.get(1));
            let found = subcommands.iter().find(|r| r.name.as_bytes().eq_ignore_ascii_case(&sub));
            let Some(sub) = found else {
                let mut text = b"ERR unknown subcommand '".to_vec();
                text.extend_from_slice(quoted(&sub, QUOTED_SIZE_MAX));
                let name = row.name.to_ascii_uppercase();
                text.extend_from_slice(format!("'. Try {name} HELP.").as_bytes());
                return Err(NotFound { row: None, text });
            };
            sub
        }
        Run::Container(_) if row.name == "command" => {
            return Ok(bare_command());
        }
        _ => row,
    };
    if row.accepts(args.len()) && !matches!(row.run.run, Run::Container(_)) {
        match too_much(row, args) {
            Some(text) => Err(NotFound { row: Some(row), text: text.into_bytes() }),
            None => Ok(row),
        }
    } else {
        let name = row.run.name;
        let text = format!("ERR wrong number of arguments for '{name}' command").into_bytes();
        Err(NotFound { row: Some(row), text })
    }
}

/// The error for a command that does not run in steps, if the command would take too long. `PING`
/// and `ECHO` may have an argument of any size, because they only repeat it.
fn too_much(row: &Command<Entry>, args: Args<'_>) -> Option<String> {
    let is_server =
        matches!(row.run.run, Run::Server(_) | Run::Connections(_)) && row.keys == KeyRange::NONE;
    let is_data = matches!(row.run.run, Run::Data(_));
    let name = row.run.name;
    let is_bounded = is_server || is_data && !row.flags.has(Flags::IN_STEPS);
    if is_bounded && args.len() > ARGS_MAX && !is_planted("options-without-end") {
        return Some(format!(
            "ERR too many arguments for '{name}' command: no more than {ARGS_MAX}"
        ));
    }
    if !is_server || ["ping", "echo"].contains(&row.name) {
        return None;
    }
    let size: usize = args.iter().map(|arg| arg.size()).sum();
    (size > SERVER_ARGS_SIZE_MAX).then(|| {
        format!(
            "ERR too large arguments for '{name}' command: no more than {SERVER_ARGS_SIZE_MAX} bytes"
        )
    })
}

/// The beginning of an argument, long enough for any command's name.
fn word(arg: Arg<'_>) -> Cow<'_, [u8]> {
    match arg {
        Arg::Blob(blob) => {
            let mut word = Vec::new();
            blob.copy_to(0..blob.size().min(WORD_SIZE_MAX), &mut word);
            Cow::Owned(word)
        }
        Arg::Bytes(bytes) => Cow::Borrowed(bytes),
    }
}

/// Why a request cannot be run: its command is unknown, or its arguments are wrong.
#[derive(Debug)]
pub(crate) struct NotFound {
    /// The command, if only its arguments are wrong.
    pub(crate) row: Option<&'static Command<Entry>>,
    /// The error to reply with.
    pub(crate) text: Vec<u8>,
}

fn unknown_command(name: &[u8], args: Args<'_>) -> Vec<u8> {
    let mut list = Vec::new();
    for arg in args.iter().skip(1) {
        if list.len() >= QUOTED_SIZE_MAX {
            break;
        }
        let room = QUOTED_SIZE_MAX - list.len();
        list.push(b'\'');
        list.extend(arg.chunks().flatten().take(room));
        list.extend_from_slice(b"' ");
    }
    let name = quoted(name, QUOTED_SIZE_MAX);
    [b"ERR unknown command '", name, b"', with args beginning with: ", &list].concat()
}

/// The first bytes of a client's word, at most `size`, for the text of an error.
fn quoted(word: &[u8], size: usize) -> &[u8] {
    &word[..word.len().min(size)]
}
