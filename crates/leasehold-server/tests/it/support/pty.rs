//! A terminal that a test types on and reads from.

use super::{PATIENCE, Sandbox};
use std::{
    fs::File,
    io::{Read as _, Write as _},
    os::fd::OwnedFd,
    process::Stdio,
    sync::{Arc, Mutex},
};
use tokio::process::{Child, Command};

/// The person's side of a terminal with a command on the other side.
pub(crate) struct Terminal {
    pub(crate) child: Child,
    keys: File,
    seen: Arc<Mutex<String>>,
}

impl Sandbox {
    /// Starts a command on a terminal of its own.
    pub(crate) fn on_terminal(&self, arguments: &[&str]) -> Terminal {
        self.on_terminal_with(arguments, |_| {})
    }

    /// The same, with more said about the command.
    pub(crate) fn on_terminal_with(&self, arguments: &[&str], more: impl FnOnce(&mut Command)) -> Terminal {
        let flags = rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY;
        let person = rustix::pty::openpt(flags).unwrap();
        rustix::pty::grantpt(&person).unwrap();
        rustix::pty::unlockpt(&person).unwrap();
        let name = rustix::pty::ptsname(&person, Vec::new()).unwrap();
        let side: OwnedFd =
            rustix::fs::open(name.as_c_str(), rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY, rustix::fs::Mode::empty())
                .unwrap();
        let stream = || Stdio::from(side.try_clone().unwrap());
        let mut command = self.command(arguments);
        command.env("TERM", "xterm").stdin(stream()).stdout(stream()).stderr(stream());
        more(&mut command);
        let child = command.spawn().unwrap();
        let mut screen = File::from(person.try_clone().unwrap());
        let seen = Arc::new(Mutex::new(String::new()));
        let sink = Arc::clone(&seen);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The read fails once the last process on the other side has ended.
            while let Ok(n @ 1..) = screen.read(&mut bytes) {
                sink.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..n]));
            }
        });
        Terminal { child, keys: File::from(person), seen }
    }
}

impl Terminal {
    /// Everything that was shown.
    pub(crate) fn seen(&self) -> String {
        self.seen.lock().unwrap().clone()
    }
    /// Waits until a text was shown.
    pub(crate) async fn shows(&self, text: &str) {
        super::until(|| self.seen().contains(text).then_some(())).await;
    }
    /// Types a line.
    pub(crate) fn types(&mut self, line: &str) {
        self.keys.write_all(format!("{line}\n").as_bytes()).unwrap();
    }
    /// Ends the input.
    pub(crate) fn ends_input(&mut self) {
        self.keys.write_all(&[4]).unwrap();
    }
    /// Presses Ctrl-C: as a signal, because the command does not own this terminal.
    pub(crate) fn interrupts(&self) {
        let pid = rustix::process::Pid::from_raw(i32::try_from(self.child.id().unwrap()).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    }
    /// How it ended.
    pub(crate) async fn exit(&mut self) -> Option<i32> {
        let status = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        status.unwrap_or_else(|_| panic!("the command did not end; it showed:\n{}", self.seen())).unwrap().code()
    }
}
