//! The server, which accepts connections.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use slimio_planted::is_planted;

use crate::connection::{self, Progress, Shared};
use crate::limits::{CONNECTIONS_MAX, UNCONNECTED_MAX};
use crate::subsystem::Subsystem;
use crate::waker::Waker;

/// Size of a connection thread's stack, in bytes. Large buffers are on the heap.
const STACK_SIZE: usize = 256 << 10;

/// A target that listens for connections. Dropping the server stops the target.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    waker: Arc<Waker>,
    is_stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

struct Acceptor {
    listener: TcpListener,
    subsystem: Arc<Subsystem>,
    waker: Arc<Waker>,
    is_stopping: Arc<AtomicBool>,
    /// The connections, in the order in which they were accepted.
    connections: Vec<Accepted>,
}

struct Accepted {
    thread: JoinHandle<()>,
    waker: Arc<Waker>,
    progress: Arc<Progress>,
}

impl Server {
    /// Starts to serve a subsystem to hosts that connect to `listener`. The server runs in threads
    /// of its own.
    ///
    /// # Errors
    /// When the kernel can't set up the listener, make the server's eventfd, or start its thread.
    pub fn start(listener: TcpListener, subsystem: Arc<Subsystem>) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let waker = Arc::new(Waker::new()?);
        let is_stopping = Arc::new(AtomicBool::new(false));
        let mut acceptor = Acceptor {
            listener,
            subsystem,
            waker: waker.clone(),
            is_stopping: is_stopping.clone(),
            connections: Vec::new(),
        };
        let thread =
            std::thread::Builder::new().name("target".into()).spawn(move || acceptor.run())?;
        Ok(Self { address, waker, is_stopping, thread: Some(thread) })
    }

    /// The address at which the target listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes all connections, and returns when every thread has ended.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.is_stopping.store(true, Ordering::Release);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // The join fails only if the thread panicked, and the thread has reported the panic.
            drop(thread.join());
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

impl Acceptor {
    fn run(&mut self) {
        while !self.is_stopping.load(Ordering::Acquire) {
            match self.listener.accept() {
                Ok((stream, peer)) => self.accept(stream, peer),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait(),
                Err(error) => {
                    self.warn(format_args!("a connection could not be accepted: {error}"));
                    // The process may have no file descriptor left. By the next try, some may have
                    // been closed.
                    std::thread::sleep(std::time::Duration::from_millis(100));
                }
            }
        }
        self.subsystem.end();
        for accepted in &self.connections {
            accepted.waker.wake();
        }
        for accepted in self.connections.drain(..) {
            // The join fails only if the thread panicked, and the thread has reported the panic.
            drop(accepted.thread.join());
        }
    }

    fn wait(&self) {
        let mut fds = [
            PollFd::from_borrowed_fd(self.listener.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.waker.as_fd(), PollFlags::IN),
        ];
        // The result does not matter: whatever it is, the loop then looks for new connections and
        // checks whether to stop.
        let _ = poll(&mut fds, None);
    }

    fn accept(&mut self, stream: TcpStream, peer: SocketAddr) {
        self.connections.retain(|accepted| !accepted.thread.is_finished());
        if self.connections.len() >= CONNECTIONS_MAX {
            self.warn(format_args!(
                "{peer} is refused, because there are already {CONNECTIONS_MAX} connections"
            ));
            return;
        }
        self.make_room();
        if let Err(error) = self.start(stream, peer) {
            self.warn(format_args!("the connection of {peer} can't be served: {error}"));
        }
    }

    /// If too many connections wait for a Connect command from their host, ends the oldest of them.
    /// So connections that send nothing can't keep a host out.
    fn make_room(&mut self) {
        let mut waiting = self.connections.iter().filter(|known| known.progress.is_waiting());
        let Some(oldest) = waiting.next() else { return };
        if waiting.count() + 1 >= UNCONNECTED_MAX && !is_planted("target-silent-stay") {
            oldest.progress.gives_way.store(true, Ordering::Relaxed);
            oldest.waker.wake();
        }
    }

    fn warn(&self, warning: std::fmt::Arguments<'_>) {
        self.subsystem.warnings.say(warning, Instant::now());
    }

    fn start(&mut self, stream: TcpStream, peer: SocketAddr) -> io::Result<()> {
        let waker = Arc::new(Waker::new()?);
        let progress = Arc::new(Progress::default());
        let shared = Shared {
            waker: waker.clone(),
            is_stopping: self.is_stopping.clone(),
            progress: progress.clone(),
        };
        let subsystem = self.subsystem.clone();
        // The stack is small, because the process may lock its memory. Then every page of each
        // stack takes memory.
        let builder = std::thread::Builder::new().name("connection".into()).stack_size(STACK_SIZE);
        let thread = builder.spawn(move || match connection::run(stream, subsystem, shared) {
            Ok(()) => log::debug!("the host at {peer} has left"),
            Err(error) => log::info!("the connection of {peer} ended: {error}"),
        })?;
        self.connections.push(Accepted { thread, waker, progress });
        Ok(())
    }
}
