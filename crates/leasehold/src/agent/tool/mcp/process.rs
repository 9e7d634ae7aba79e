//! A server's process: it leads a group of its own, which ends with the connection, with the runtime and with us. Its standard error
//! is read all the time and only its end is kept, so that it never waits for us there.

use super::{mask::Mask, target::Command};
use crate::limits::{MCP_GRACE, MCP_STDERR_BYTES_MAX};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use secrecy::ExposeSecret as _;
use std::{
    collections::VecDeque,
    io,
    os::fd::OwnedFd,
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, unix::AsyncFd},
    process::{Child, ChildStdin, ChildStdout},
    sync::watch,
    time::timeout,
};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Of this process's environment a server gets these and no other: provider keys and tokens stay here.
const INHERITED: [&str; 11] =
    ["HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER"];

/// The end of what a server wrote to its standard error, and how its last process ended.
#[derive(Clone, Debug, Default)]
pub(super) struct LastWords(Arc<Mutex<Words>>);

#[derive(Debug, Default)]
struct Words {
    tail: VecDeque<u8>,
    is_cut: bool,
    end: Option<String>,
}

impl LastWords {
    fn push(&self, bytes: &[u8]) {
        let mut words = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = &bytes[bytes.len().saturating_sub(MCP_STDERR_BYTES_MAX)..];
        let over = (words.tail.len() + kept.len()).saturating_sub(MCP_STDERR_BYTES_MAX);
        words.is_cut |= over > 0 || kept.len() < bytes.len();
        words.tail.drain(..over);
        words.tail.extend(kept);
    }

    fn ended(&self, how: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).end = Some(how);
    }

    /// What was written last, oldest first, in whole lines: half a secret is not known as one.
    pub(super) fn lines(&self, mask: &Mask) -> Vec<String> {
        let words = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (bytes, is_cut): (Vec<u8>, bool) = (words.tail.iter().copied().collect(), words.is_cut);
        drop(words);
        let kept = match bytes.iter().position(|byte| *byte == b'\n') {
            _ if !is_cut => &bytes[..],
            Some(end) => &bytes[end + 1..],
            None => return vec![format!("(one line of more than {MCP_STDERR_BYTES_MAX} bytes)")],
        };
        mask.over(&String::from_utf8_lossy(kept)).lines().map(str::to_owned).collect()
    }

    /// How the last process that is over ended.
    pub(super) fn end(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).end.clone()
    }
}

/// A running process; dropped, its group ends.
#[derive(Debug)]
pub(super) struct Process {
    _stop: DropGuard,
    over: watch::Receiver<bool>,
}

impl Process {
    /// Starts it. Its output and input are the connection.
    pub(super) fn start(command: &Command, words: &LastWords) -> io::Result<(Self, ChildStdout, ChildStdin)> {
        let mut starting = tokio::process::Command::new(&command.program);
        starting.args(&command.arguments).env_clear().process_group(0).kill_on_drop(true);
        starting.envs(INHERITED.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        starting.envs(command.env.iter().map(|(name, value)| (name, value.expose_secret())));
        starting.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = starting.spawn()?;
        let taken = || io::Error::other("a stream of the process is missing");
        let (input, output) = (child.stdin.take().ok_or_else(taken)?, child.stdout.take().ok_or_else(taken)?);
        let errors = child.stderr.take().ok_or_else(taken)?;
        let pid = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)).ok_or_else(taken)?;
        let group = Group { pid, is_over: false };
        // Readable when the leader is over, while it is not yet reaped: until then its number is nobody else's.
        #[expect(deprecated, reason = "unsound for types that give another descriptor each time; an owned one does not")]
        let leader = AsyncFd::new(pidfd_open(pid, PidfdFlags::empty())?)?;
        let stop = CancellationToken::new();
        let (is_over, over) = watch::channel(false);
        tokio::spawn(keep_the_end_of(errors, words.clone()));
        tokio::spawn(attend(child, group, leader, stop.clone(), words.clone(), is_over));
        Ok((Self { _stop: stop.drop_guard(), over }, output, input))
    }

    /// Until it is over and reaped.
    pub(super) fn over(&self) -> watch::Receiver<bool> {
        self.over.clone()
    }
}

/// The group of a leader that is not reaped. Dropped, it is killed: so it is where the runtime ends before its tasks do.
struct Group {
    pid: Pid,
    is_over: bool,
}

impl Group {
    fn signal(&self, signal: Signal) {
        // It may be over already, and more than this cannot be done.
        if let Err(error) = kill_process_group(self.pid, signal)
            && error != rustix::io::Errno::SRCH
        {
            tracing::warn!(%error, group = self.pid.as_raw_nonzero().get(), "an MCP server's processes were not signalled");
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.is_over {
            self.signal(Signal::KILL);
        }
    }
}

async fn attend(
    mut child: Child,
    mut group: Group,
    leader: AsyncFd<OwnedFd>,
    stop: CancellationToken,
    words: LastWords,
    over: watch::Sender<bool>,
) {
    tokio::select! {
        _ = leader.readable() => {}
        () = stop.cancelled() => {
            // Its input is closed by now, or is in a moment.
            if !ended_within(&leader, MCP_GRACE).await {
                group.signal(Signal::TERM);
                ended_within(&leader, MCP_GRACE).await;
            }
        }
    }
    // What it left behind goes with it.
    group.signal(Signal::KILL);
    match child.wait().await {
        Ok(status) => words.ended(status.to_string()),
        Err(error) => words.ended(format!("nobody knows how: {error}")),
    }
    group.is_over = true;
    over.send_replace(true);
}

async fn ended_within(leader: &AsyncFd<OwnedFd>, limit: Duration) -> bool {
    timeout(limit, leader.readable()).await.is_ok()
}

async fn keep_the_end_of(mut errors: impl AsyncRead + Unpin, words: LastWords) {
    let mut chunk = vec![0; 16 * 1024];
    loop {
        match errors.read(&mut chunk).await {
            Ok(0) | Err(_) => break,
            Ok(read) => words.push(&chunk[..read]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_end_of_what_it_says_is_kept_in_whole_lines_that_keep_no_half_of_a_secret() {
        let mut mask = Mask::default();
        mask.add("sk-secret-1");
        let words = LastWords::default();
        words.push(b"sk-secret-1\nfirst\n");
        let rest = "x".repeat(MCP_STDERR_BYTES_MAX - "sk-secret-1\nfirst\n".len());
        words.push(rest.as_bytes());
        assert_eq!(words.lines(&mask), ["***", "first", &rest], "what fits stays");
        words.push(b"y");
        assert_eq!(words.lines(&mask), ["first", &format!("{rest}y")]);
        words.push(b"\nlast");
        assert_eq!(words.lines(&mask), ["first", &format!("{rest}y"), "last"]);
        words.push(&vec![b'y'; 3 * MCP_STDERR_BYTES_MAX]);
        assert_eq!(words.lines(&mask), [format!("(one line of more than {MCP_STDERR_BYTES_MAX} bytes)")]);
    }
}
