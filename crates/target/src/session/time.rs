//! The deadlines of a connection.

use std::time::{Duration, Instant};

use slimio_planted::is_planted;

use super::{Phase, Session};
use crate::limits::{CONNECT_TIME_MAX, ONE_TRANSFER_TIME_MAX, SEND_TIME_MAX, TRANSFER_TIME_MAX};

/// Time from one search for stalled transfers to the next.
const LOOK: Duration = Duration::from_secs(1);

impl Session {
    /// If no bytes wait to be sent, the time limit for sending begins at `now`. So a host has the
    /// full time to take the bytes that are sent next.
    pub(super) fn note_time(&mut self, now: Instant) {
        if self.output().is_empty() && !is_planted("target-idle-cut-off") {
            self.sent_at = now;
        }
    }

    /// Notes that the host has sent bytes, although perhaps no whole PDU. From now on, the host has
    /// the full time again to send the data that it was asked for.
    pub(crate) fn note_heard(&mut self, now: Instant) {
        self.data_at = now;
    }

    /// When [`tick`](Self::tick) must be called at the latest.
    pub fn next_deadline(&self) -> Option<Instant> {
        let sending = (!self.output().is_empty()).then(|| self.sent_at + SEND_TIME_MAX);
        let beginning = matches!(self.phase, Phase::Request | Phase::Connect)
            .then(|| self.began_at + CONNECT_TIME_MAX);
        let alive = match &self.phase {
            Phase::Admin(controller) => controller.expires_at(),
            _ => None,
        };
        [sending, beginning, alive, self.look_at].into_iter().flatten().min()
    }

    /// Checks the deadlines, and whether the controller was ended or reset.
    pub fn tick(&mut self, now: Instant) {
        self.note_time(now);
        if !self.output().is_empty() && now >= self.sent_at + SEND_TIME_MAX {
            log::warn!(
                "a host is cut off, because it took none of its replies for {SEND_TIME_MAX:?}"
            );
            self.end();
            self.out.clear();
            self.sent = 0;
        }
        match &self.phase {
            Phase::Request | Phase::Connect if now >= self.began_at + CONNECT_TIME_MAX => {
                self.end();
            }
            Phase::Admin(controller) if controller.is_over() => self.end(),
            Phase::Admin(controller) if controller.expires_at().is_some_and(|at| now >= at) => {
                log::warn!("controller {} ends, because no command came in time", controller.id);
                self.end();
            }
            Phase::Io { controller, resets, .. }
                if controller.is_over() || controller.resets() != *resets =>
            {
                self.end();
            }
            _ => {}
        }
        if self.look_at.is_some_and(|at| now >= at) {
            self.look_at = self.slots.is_receiving().then(|| now + LOOK);
            // A slow host sends the data of its transfers one after the other. So the time limit of
            // one transfer is much longer than that of a silent host.
            let is_silent = now >= self.data_at + TRANSFER_TIME_MAX && self.slots.is_receiving();
            if is_silent || self.slots.is_stalled(now, ONE_TRANSFER_TIME_MAX) {
                log::warn!("a host is cut off, because it did not send requested data in time");
                self.end();
            }
        }
        self.settle(now);
    }

    /// Begins the regular search for stalled transfers, if there are transfers.
    pub(super) fn watch_transfers(&mut self, now: Instant) {
        if self.look_at.is_none() && self.slots.is_receiving() {
            self.look_at = Some(now + LOOK);
        }
    }
}
