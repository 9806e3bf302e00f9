//! Peers in other processes: this test program again.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::process::{self, Command, Stdio};
use std::sync::mpsc;

use expertrail_fabric::RemoteRegion;

use super::DEADLINE;

/// A peer in another process: this test program again, running the test `role`, with lines as the way to talk.
pub(crate) struct Child {
    child: process::Child,
    lines: mpsc::Receiver<String>,
}

impl Child {
    pub(crate) fn start(role: &str, provider: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "--nocapture", role])
            .env(PROVIDER, provider)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (send, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                // What the test program prints around it is not for us.
                if let Some(line) = line.split_once(MARK).map(|(_, line)| line.to_owned())
                    && send.send(line).is_err()
                {
                    return;
                }
            }
        });
        Self { child, lines }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn hear(&self) -> String {
        self.lines.recv_timeout(DEADLINE).expect("the other process says nothing")
    }

    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    /// Waits for its end; whether it passed.
    pub(crate) fn passed(&mut self) -> bool {
        drop(self.child.stdin.take());
        self.child.wait().unwrap().success()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // For tests that fail on the way.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const PROVIDER: &str = "EXPERTRAIL_TEST_PROVIDER";
const MARK: &str = "@@";

/// In the other process: its provider, or none when it was not started by [`Child`].
pub(crate) fn role() -> Option<String> {
    std::env::var(PROVIDER).ok()
}

pub(crate) fn say(line: &str) {
    println!("\n{MARK}{line}");
}

pub(crate) fn listen() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

/// An address and a region as one line.
pub(crate) fn card_line((address, region): &(Vec<u8>, RemoteRegion)) -> String {
    region.encode().iter().chain(address).fold(String::new(), |mut line, byte| {
        let _ = write!(line, "{byte:02x}");
        line
    })
}

pub(crate) fn read_card(line: &str) -> (Vec<u8>, RemoteRegion) {
    let byte = |at: usize| u8::from_str_radix(&line[2 * at..2 * at + 2], 16).unwrap();
    let bytes: Vec<u8> = (0..line.len() / 2).map(byte).collect();
    let (region, address) = bytes.split_at(RemoteRegion::ENCODED);
    (address.to_vec(), RemoteRegion::decode(region).unwrap())
}
