//! The input of `forebay publish`, read in chunks of whole lines.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use tokio::sync::mpsc::Sender;

/// Bytes of input a chunk aims at.
const CHUNK_BYTES: usize = 64 * 1024;
/// Longest line, and largest whole input, in bytes; brokers take 16 to 128 MiB by default.
const MESSAGE_BYTES_MAX: usize = 128 << 20;

/// Where the messages come from.
pub(crate) struct Input {
    pub(crate) reader: Box<dyn Read + Send>,
    /// What the messages' ids begin with.
    pub(crate) name: String,
    pub(crate) size_bytes: Option<u64>,
}

impl Input {
    /// Opens a file; standard input without one, or for `-`.
    pub(crate) fn open(file: Option<&Path>) -> Result<Input, String> {
        match file {
            Some(path) if path.as_os_str() != "-" => {
                let shown = path.display();
                let file = File::open(path).map_err(|error| match error.kind() {
                    // Perhaps it was meant to be sent itself.
                    io::ErrorKind::NotFound => format!(
                        "cannot open {shown}: {error}; it is read as a file; to send text: echo TEXT | forebay publish …"
                    ),
                    _ => format!("cannot open {shown}: {error}"),
                })?;
                let meta =
                    file.metadata().map_err(|error| format!("cannot read {shown}: {error}"))?;
                if meta.is_dir() {
                    return Err(format!("cannot read {shown}: it is a directory"));
                }
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let size_bytes = meta.is_file().then_some(meta.len());
                Ok(Input { reader: Box::new(file), name, size_bytes })
            }
            _ => {
                let reader = Box::new(io::stdin());
                Ok(Input { reader, name: "stdin".into(), size_bytes: None })
            }
        }
    }
}

/// What the reader hands over: whole lines, or the reason why there are no more.
pub(crate) enum Chunk {
    Lines(Vec<u8>),
    Whole(Vec<u8>),
    Failed(String),
}

/// Reads the input to its end, and says why if it ends early. Blocks.
pub(crate) fn read_chunks(input: Box<dyn Read + Send>, whole: bool, chunks: &Sender<Chunk>) {
    let mut reader = BufReader::with_capacity(CHUNK_BYTES, input);
    let outcome = if whole {
        read_whole(&mut reader).and_then(|body| hand_over(chunks, Chunk::Whole(body)))
    } else {
        read_lines(&mut reader, MESSAGE_BYTES_MAX, chunks)
    };
    if let Err(sentence) = outcome {
        // The receiver is gone only when nobody wants to know any more.
        let _ = chunks.blocking_send(Chunk::Failed(sentence));
    }
}

fn read_whole(reader: &mut impl Read) -> Result<Vec<u8>, String> {
    let mut body = Vec::new();
    reader
        .take(MESSAGE_BYTES_MAX as u64 + 1)
        .read_to_end(&mut body)
        .map_err(|error| format!("cannot read the input: {error}"))?;
    if body.len() > MESSAGE_BYTES_MAX {
        return Err(format!("the input is larger than {MESSAGE_BYTES_MAX} bytes"));
    }
    Ok(body)
}

/// Cuts the input after the last line end of whatever one read gave, so that lines of a slow input
/// go on at once.
fn read_lines(
    reader: &mut impl BufRead,
    line_bytes_max: usize,
    chunks: &Sender<Chunk>,
) -> Result<(), String> {
    let mut lines = Vec::with_capacity(CHUNK_BYTES);
    let mut whole_lines = 0;
    loop {
        let read = match reader.fill_buf() {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(format!("cannot read the input: {error}")),
        };
        if read.is_empty() {
            break;
        }
        let used = read.len();
        if let Some(last_end) = read.iter().rposition(|&byte| byte == b'\n') {
            lines.extend_from_slice(&read[..=last_end]);
            whole_lines += lines.iter().filter(|&&byte| byte == b'\n').count();
            let rest = read[last_end + 1..].to_vec();
            hand_over(chunks, Chunk::Lines(std::mem::replace(&mut lines, rest)))?;
        } else {
            lines.extend_from_slice(read);
        }
        if lines.len() > line_bytes_max {
            let line = whole_lines + 1;
            return Err(format!(
                "line {line} is longer than {line_bytes_max} bytes, the most there is"
            ));
        }
        reader.consume(used);
    }
    if lines.is_empty() { Ok(()) } else { hand_over(chunks, Chunk::Lines(lines)) }
}

fn hand_over(chunks: &Sender<Chunk>, chunk: Chunk) -> Result<(), String> {
    chunks.blocking_send(chunk).map_err(|_| "nobody takes the input any more".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc::channel;

    fn lines_of(input: &[u8], read_bytes: usize) -> Vec<u8> {
        let (chunks, mut received) = channel(1000);
        let mut reader = BufReader::with_capacity(read_bytes, input);
        read_lines(&mut reader, MESSAGE_BYTES_MAX, &chunks).unwrap();
        drop(chunks);
        std::iter::from_fn(|| received.blocking_recv())
            .flat_map(|chunk| match chunk {
                Chunk::Lines(lines) => lines,
                _ => panic!("only lines were expected"),
            })
            .collect()
    }

    #[test]
    fn no_byte_of_the_input_is_lost_however_it_is_read() {
        let input = b"one\n\nthree\r\na longer line than any buffer here\nlast without end";
        for read_bytes in 1..20 {
            assert_eq!(lines_of(input, read_bytes), input);
        }
        assert_eq!(lines_of(b"", 10), b"");
    }

    #[test]
    fn a_line_that_is_too_long_is_named() {
        let (chunks, _received) = channel(1000);
        let mut reader = BufReader::with_capacity(4, &b"one\n\nthree\n0123456789\n"[..]);
        let sentence = read_lines(&mut reader, 6, &chunks).unwrap_err();
        assert_eq!(sentence, "line 4 is longer than 6 bytes, the most there is");
    }
}
