//! Finds the end of a reply, for clients.

use crate::integer::parse_i64;

/// How many levels of nested replies are allowed, including the outermost reply.
const NESTING_MAX: usize = 32;

/// The bytes are not a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyError;

/// Size in bytes of the reply at the start of `bytes`, or `None` if it is incomplete. An attribute
/// counts as part of the reply that it precedes.
pub fn reply_size(bytes: &[u8]) -> Result<Option<usize>, ReplyError> {
    let mut position = 0;
    // Replies still to come on each level.
    let mut levels = vec![1u64];
    while let Some(missing) = levels.last_mut() {
        if *missing == 0 {
            levels.pop();
            continue;
        }
        *missing -= 1;
        let Some(&kind) = bytes.get(position) else { return Ok(None) };
        if kind == b'\r' {
            return Err(ReplyError);
        }
        let Some(end) = bytes[position..].iter().position(|&byte| byte == b'\r') else {
            return Ok(None);
        };
        let text = &bytes[position + 1..position + end];
        position += end + 2;
        match kind {
            b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => {}
            b'$' | b'=' | b'!' => {
                if let Ok(size) = usize::try_from(parse_i64(text).ok_or(ReplyError)?) {
                    position = position.saturating_add(size).saturating_add(2);
                }
            }
            b'*' | b'~' | b'>' | b'%' | b'|' => {
                let len = u64::try_from(parse_i64(text).ok_or(ReplyError)?).unwrap_or(0);
                let replies = match kind {
                    b'%' => len.saturating_mul(2),
                    b'|' => len.saturating_mul(2).saturating_add(1),
                    _ => len,
                };
                if levels.len() == NESTING_MAX {
                    return Err(ReplyError);
                }
                levels.push(replies);
            }
            _ => return Err(ReplyError),
        }
        if position > bytes.len() {
            return Ok(None);
        }
    }
    Ok(Some(position))
}
