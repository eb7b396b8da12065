//! The answers of the keeper (the process that looks after the logs of programs) to the programs'
//! processes.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Instant;

use super::{Keeper, NO_LOG, PATIENCE, RETRY_FIRST, name, path_of};
use crate::log::{Log, said};
use crate::protocol::Message;
use crate::tables::Table;
use crate::{LogFile, NotTaken};

impl Keeper {
    /// Receives the messages of a process, and answers them.
    pub(super) fn hear(&mut self, process: u32) {
        loop {
            let Some(found) = self.processes.iter().find(|found| found.number == process) else {
                return;
            };
            match Message::receive(&found.socket, false) {
                Ok(Some((message, descriptors))) => {
                    self.answer(process, message, descriptors.into_iter().next());
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The process has closed the socket, or has sent bytes that are no message.
                Ok(None) | Err(_) => return self.part_with(process),
            }
        }
    }

    fn answer(&mut self, process: u32, message: Message, descriptor: Option<OwnedFd>) {
        // A process may name a log of another process, because a forked child appends to the logs
        // of its parent, and reports these appends itself.
        let find = |log: &Log, number| log.number == number;
        match (message, descriptor) {
            (Message::Take { token, is_self_ending }, Some(descriptor)) if token == self.token => {
                self.has_met = true;
                self.take(process, descriptor.into(), is_self_ending);
            }
            (Message::Debts(token), _) if token == self.token => {
                let table = self.table.as_ref().map(|table| table.file().as_fd());
                let answer = table.map_or(Message::No, |_| Message::Yes(NO_LOG));
                if self.sent(process, &answer, table).is_err() {
                    self.part_with(process);
                }
            }
            (Message::Whole(token), Some(descriptor)) if token == self.token => {
                self.has_met = true;
                let file = File::from(descriptor);
                let path = path_of(&file);
                let say = |table: &mut Table| table.say_of(&file, &path);
                if let Some(said) = self.table.as_mut().and_then(say) {
                    self.say_of(&path, &said);
                }
                // After the answer, the process opens the file once more. That open must not have
                // to wait for the keeper, so the keeper closes the file before it answers.
                drop(file);
                self.send(process, &Message::Done(NO_LOG));
            }
            (Message::Appended(number), _) => {
                if let Some(log) = self.logs.iter_mut().find(|log| find(log, number)) {
                    log.is_behind = true;
                    log.look_again(0);
                }
            }
            (Message::Closed(number), _) => {
                let is_own = |log: &Log| find(log, number) && log.process == process;
                if let Some(at) = self.logs.iter().position(is_own) {
                    self.end(at);
                }
                self.send(process, &Message::Done(number));
            }
            _ => self.part_with(process),
        }
    }

    /// Sends a message without a descriptor. If that fails, parts with the process.
    fn send(&mut self, to: u32, message: &Message) {
        if self.sent(to, message, None).is_err() {
            self.part_with(to);
        }
    }

    /// Sends a message. If the keeper knows no such process any more, does nothing.
    fn sent(
        &self,
        to: u32,
        message: &Message,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        let process = self.processes.iter().find(|process| process.number == to);
        process.map_or(Ok(()), |to| message.send(&to.socket, descriptor.as_slice(), false))
    }

    /// Takes a file for a process, or leaves it to the kernel for good, and answers the process.
    fn take(&mut self, process: u32, file: File, is_self_ending: bool) {
        let path = path_of(&file);
        let number = self.number();
        let (stage_path, stage_file, stage) = match self.make_stage(number, is_self_ending) {
            Ok(made) => made,
            Err(error) => {
                // From the answer on, only the program may have the file open.
                drop(file);
                self.send(process, &Message::No);
                self.say_of(&path, &format!("left to the kernel: no stage can be made: {error}"));
                return;
            }
        };
        let mut log = Log {
            number,
            process,
            path: path.clone(),
            file: LogFile::new(file, stage.with_patience(PATIENCE)),
            stage_path,
            stage_file,
            note: None,
            lease: None,
            is_behind: false,
            look: None,
            retry: None,
            pause: RETRY_FIRST,
        };
        if let Some(notes) = self.notes.as_ref().filter(|_| !is_self_ending) {
            match notes.note(&name(number), &log.path) {
                Ok(note) => log.note = Some(note),
                Err(error) => self.say_of(&log.path, &format!("no note on the disk: {error}")),
            }
        }
        self.tell_guard(|guard| guard.add(number, log.file.file(), &log.stage_file));
        // The process must have the stage before the file is changed. If the keeper is killed after
        // that, the stage says whether the file has to be given back, and how long the log is.
        let stage = Some(log.stage_file.as_fd());
        if self.sent(process, &Message::Stage(number), stage).is_err() {
            self.leave(log);
            return self.part_with(process);
        }
        let taken = log.take();
        match taken {
            Ok(()) => self.logs.push(log),
            Err(NotTaken::Busy) => {
                log.retry = Some(Instant::now() + log.pause);
                self.logs.push(log);
            }
            // The process finds the failure in the stage.
            Err(_) if log.file.has_failed().unwrap_or(false) => self.logs.push(log),
            // Taking the file failed midway, and then the file could not be given back either.
            Err(_) if log.file.is_taken().unwrap_or(true) => {
                self.logs.push(log);
                self.end(self.logs.len() - 1);
            }
            Err(_) => self.leave(log),
        }
        let is_kept = self.logs.last().is_some_and(|log| log.number == number);
        self.send(process, &if is_kept { Message::Yes(number) } else { Message::No });
        // Whoever reads the keeper's output may be slow. The program must not wait for this reader,
        // so its answer was sent first.
        self.say_once(&path, said(&taken));
    }

    /// Drops a log that was not taken, so the kernel goes on writing the log's file.
    fn leave(&mut self, mut log: Log) {
        self.tell_guard(|guard| guard.remove(log.number));
        log.forget_stage();
    }
}
