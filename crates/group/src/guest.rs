//! Connections that have not said who they are.

use std::time::{Duration, Instant};

use crate::conn::Conn;
use crate::wire::{Answer, Greeting, Hello, read_hello};

/// A greeting is shorter than this.
const MAX_GREETING: usize = 1024;
/// How long a refused connection is kept, so that the refusal is read before the end: closing while its
/// bytes are unread would reset the connection and could swallow the message.
const LINGER: Duration = Duration::from_secs(1);

/// One such connection.
pub(crate) struct Guest {
    pub(crate) conn: Conn,
    pub(crate) from: String,
    until: Instant,
    refused: bool,
}

/// What became of it.
pub(crate) enum Visit {
    /// Nothing yet.
    Waiting,
    /// It said who it is.
    Greeted(Box<Hello>),
    /// It is not for us, and why.
    Unwelcome(String),
    /// It is done with.
    Over,
}

impl Guest {
    pub(crate) fn new(conn: Conn, from: String, until: Instant) -> Self {
        Self { conn, from, until, refused: false }
    }

    pub(crate) fn until(&self) -> Instant {
        self.until
    }

    /// Reads what has come and says what it means.
    pub(crate) fn visit(&mut self, now: Instant) -> Visit {
        self.conn.flush();
        self.conn.fill();
        if self.refused {
            let unread = self.conn.input().len();
            self.conn.take(unread);
            return if self.conn.ended().is_some() || now >= self.until {
                Visit::Over
            } else {
                Visit::Waiting
            };
        }
        let input = self.conn.input();
        if !input.is_empty() {
            match read_hello(input) {
                Ok((Greeting::Hello(hello), count)) => {
                    self.conn.take(count);
                    return Visit::Greeted(hello);
                }
                Ok((Greeting::Version(version), _)) => {
                    return Visit::Unwelcome(format!(
                        "it speaks version {version} of the group protocol, this job {}; all ranks must run the \
                         same version of Expertrail",
                        crate::wire::VERSION
                    ));
                }
                Ok((Greeting::Stranger(text), _)) => {
                    return Visit::Unwelcome(format!("it is no Expertrail rank (it sent {text:?})"));
                }
                Err(_) if input.len() > MAX_GREETING => {
                    return Visit::Unwelcome("its greeting is longer than any greeting".to_owned());
                }
                Err(_) => {}
            }
        }
        if let Some(end) = self.conn.ended() {
            // Port scanners and health checks connect and leave: not worth a message unless they spoke.
            return if input.is_empty() {
                Visit::Over
            } else {
                Visit::Unwelcome(format!("it broke off: {end}"))
            };
        }
        if now >= self.until {
            return Visit::Unwelcome("it did not say who it is in time".to_owned());
        }
        Visit::Waiting
    }

    /// Tells it why it is not let in, and keeps it until it has read that.
    pub(crate) fn refuse(&mut self, answer: &Answer, now: Instant) {
        self.conn.queue(answer.encode().into());
        self.conn.flush();
        self.conn.finish_sending();
        self.refused = true;
        self.until = now + LINGER;
    }
}
