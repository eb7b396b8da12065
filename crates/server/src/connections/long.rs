//! Serves the client of the long request (a large request that runs in steps). At the end of the
//! steps, the client gets the reply, or the request has to wait for room in the log or for the end
//! of a pause. The module `long` of [`crate::engine`] runs the request itself.

use slimio_planted::is_planted;
use slimio_resp::ReplyBuf;

use super::Connections;
use super::output::limit_reply;
use crate::clients::State;
use crate::engine::{Engine, Long, Next};
use crate::waiting::{Again, Then};

impl Connections {
    /// Runs steps of the long request, if there is one, for a bounded time.
    pub(crate) fn drive_long(&mut self, engine: &mut Engine) {
        if let Some((long, next)) = engine.long_steps() {
            self.end_long(engine, long, next);
            self.serve_waiting_for_keys(engine);
            self.resume_held_up(engine);
        } else {
            self.count_made(engine);
        }
    }

    /// Counts the finished parts of the long request's reply towards the output limit of its
    /// client.
    fn count_made(&mut self, engine: &mut Engine) {
        let Some(long) = &engine.data.long else { return };
        let size = long.made().map(ReplyBuf::len).sum();
        let conn = long.conn;
        if size > 0
            && let Some(mut client) = self.clients.take(conn)
        {
            if matches!(client.state, State::Long) {
                client.long_reply_size = size;
                self.look_at_output(&mut client);
            }
            self.clients.put(client);
        }
    }

    /// Runs the long request to its end at once. Called when the server ends.
    pub(crate) fn finish_long(&mut self, engine: &mut Engine) {
        while engine.data.long.is_some() {
            self.drive_long(engine);
        }
    }

    /// Replies to the client of the long request, or makes the request wait for room in the log or
    /// for the end of a pause.
    fn end_long(&mut self, engine: &mut Engine, mut long: Box<Long>, next: Next) {
        let Some(mut client) = self.clients.take(long.conn) else {
            engine.data.freeing.drop_elsewhere(long);
            return;
        };
        if !matches!(client.state, State::Long) {
            self.clients.put(client);
            engine.data.freeing.drop_elsewhere(long);
            return;
        }
        client.state = State::Running;
        client.long_reply_size = 0;
        let before = client.out.len();
        match next {
            Next::Wait(reason) => {
                self.waiting.again.ticket = Some(long.ticket);
                self.wait(
                    engine,
                    &mut client,
                    reason,
                    Then::Again(std::mem::take(&mut long.request)),
                );
                self.waiting.again = Again::default();
                client.keeps_request = false;
            }
            Next::Reject(text) => engine.reject(&mut client, Some(long.row), text.as_bytes()),
            Next::Step | Next::End => {
                if let Some(lsn) = long.lsn.filter(|_| !is_planted("long-unwaited")) {
                    client.last_write = lsn;
                }
                limit_reply(&engine.settings, &mut client);
                client.out.append(&long.reply);
                engine.hold(&mut client, long.needs, before);
                let args = long.request.args();
                engine.account(&mut client, long.row, args, long.spent, before, false);
            }
        }
        client.leave_out(before);
        self.close_if_cut(engine, &mut client);
        if client.is_running() {
            self.resume(&mut client);
        }
        self.put_back(engine, client);
        engine.data.freeing.drop_elsewhere(long);
    }
}
