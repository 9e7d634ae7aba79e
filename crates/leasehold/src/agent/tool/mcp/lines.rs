//! What a process writes to its standard output, without the lines that cannot be messages: skipping them here costs nothing, and
//! parsing megabytes of them would.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio::io::{AsyncBufRead as _, AsyncRead, BufReader, ReadBuf};

/// Passes on the lines that begin like an object.
#[derive(Debug)]
pub(super) struct Objects<R> {
    inner: BufReader<R>,
    line: Line,
}

#[derive(Clone, Copy, Debug)]
enum Line {
    Begins,
    Passes,
    IsSkipped,
}

impl<R: AsyncRead> Objects<R> {
    pub(super) fn new(inner: R) -> Self {
        Self { inner: BufReader::with_capacity(64 * 1024, inner), line: Line::Begins }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Objects<R> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            let this = &mut *self;
            let bytes = ready!(Pin::new(&mut this.inner).poll_fill_buf(context))?;
            let Some(first) = bytes.first() else { return Poll::Ready(Ok(())) };
            // No further than what is used now, so that no byte is looked at twice.
            let room = if matches!(this.line, Line::Passes) { out.remaining() } else { bytes.len() };
            let bytes = &bytes[..bytes.len().min(room)];
            let whole = bytes.iter().position(|byte| *byte == b'\n').map(|end| end + 1);
            let read = whole.unwrap_or(bytes.len());
            match this.line {
                Line::Begins if first.is_ascii_whitespace() => Pin::new(&mut this.inner).consume(1),
                // An object, or the mark of UTF-8 before one.
                Line::Begins => this.line = if matches!(first, b'{' | 0xef) { Line::Passes } else { Line::IsSkipped },
                Line::IsSkipped => {
                    this.line = if whole.is_some() { Line::Begins } else { Line::IsSkipped };
                    Pin::new(&mut this.inner).consume(read);
                }
                Line::Passes => {
                    out.put_slice(&bytes[..read]);
                    this.line = if whole.is_some() { Line::Begins } else { Line::Passes };
                    Pin::new(&mut this.inner).consume(read);
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt as _;

    #[tokio::test]
    async fn only_lines_that_begin_like_an_object_pass_whole() {
        let long = format!("{{{}}}\n", "x".repeat(200_000));
        let text = format!("hello\n{{\"a\":1}}\n\n  {{\"b\":2}}\r\n[]\n\n{long}{{\"half");
        for at_once in [1, 7, 100_000] {
            let mut objects = Objects::new(text.as_bytes());
            let mut passed = Vec::new();
            let mut chunk = vec![0; at_once];
            loop {
                match objects.read(&mut chunk).await.unwrap() {
                    0 => break,
                    read => passed.extend_from_slice(&chunk[..read]),
                }
            }
            let expected = format!("{{\"a\":1}}\n{{\"b\":2}}\r\n{long}{{\"half");
            assert!(passed == expected.as_bytes(), "{at_once}: {:.100}", String::from_utf8_lossy(&passed));
        }
    }
}
