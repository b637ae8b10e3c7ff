//! The bodies of the fuzz targets: given any bytes, nothing panics and what is accepted holds
//! together. `fuzz/fuzz_targets/*` and `fuzz_bodies.rs` (plain `cargo test`) run the same ones.

use forebay_wire::{
    Array, ArrayBuf, ContentHeader, Frame, FrameError, FrameKind, Method, RawProperties,
    TABLE_DEPTH_MAX, Table, TableBuf, TableError, Value, frame_size_bytes, read_frame,
    write_body_frame, write_header_frame, write_properties_frame,
};

/// What a target does with one input.
pub type Body = fn(&[u8]);

/// Name and body of every target.
pub const TARGETS: &[(&str, Body)] = &[
    ("frame", frame),
    ("method", method),
    ("table", table),
    ("connection_bytes", connection_bytes),
];

/// One frame at the start of the input.
pub fn frame(data: &[u8]) {
    for frame_max_bytes in [0, 4096, 131_072] {
        let whole = read_frame(data, frame_max_bytes);
        match whole {
            Ok(Some(frame)) => {
                let size_bytes = frame.size_bytes();
                assert!(size_bytes <= data.len());
                assert_eq!(frame_size_bytes(data), Some(size_bytes));
                assert!(frame_max_bytes == 0 || size_bytes <= frame_max_bytes as usize);
                let mut again = Vec::new();
                write_body_frame(&mut again, frame.channel, frame.payload);
                again[0] = frame.kind as u8;
                assert_eq!(again, data[..size_bytes]);
                // Whatever comes before the last byte is incomplete, never an error.
                for cut in cuts(size_bytes) {
                    assert_eq!(read_frame(&data[..cut], frame_max_bytes), Ok(None));
                }
            }
            // An error may show early, but it is always the same one.
            Err(error) => {
                for cut in cuts(data.len()) {
                    let part = read_frame(&data[..cut], frame_max_bytes);
                    assert!(part == Ok(None) || part == Err(error));
                }
            }
            Ok(None) => {}
        }
    }
}

/// A method payload, and the same bytes as a content header.
pub fn method(data: &[u8]) {
    if let Ok(method) = Method::parse(data) {
        let mut again = Vec::new();
        method.encode(&mut again);
        // Only unused bits of a bit octet may differ.
        assert_eq!(again.len(), data.len());
        assert_eq!(Method::parse(&again), Ok(method));
        assert_eq!(again[..4], data[..4]);
        let _ = format!("{method:?}");
    }
    if let Ok(header) = ContentHeader::parse(data) {
        let properties = header.properties.parse();
        assert_eq!(header.properties.delivery_mode(), properties.delivery_mode);
        assert_eq!(header.properties.headers(), properties.headers);
        let mut again = Vec::new();
        properties.encode(&mut again);
        assert_eq!(again, header.properties.raw());
        let (mut raw, mut encoded) = (Vec::new(), Vec::new());
        let (class_id, size) = (header.class_id, header.body_size_bytes);
        write_header_frame(&mut raw, 1, class_id, size, header.properties);
        write_properties_frame(&mut encoded, 1, class_id, size, &properties);
        assert_eq!(raw, encoded);
        assert_eq!(raw[7..raw.len() - 1], *data);
    }
    // Trusted bytes may be nonsense; reading them still must not panic.
    let _ = format!("{:?}", RawProperties::trusted(data));
    let _ = RawProperties::trusted(data).delivery_mode();
}

/// The contents of a table, and of an array.
pub fn table(data: &[u8]) {
    if let Ok(table) = Table::validate(data) {
        let copy = copied_table(table, 1);
        assert_eq!(copied_table(copy.as_table(), 1), copy);
        assert_eq!(copy.as_table().raw().len(), data.len());
        assert_eq!(Table::validate(copy.as_table().raw()), Ok(copy.as_table()));
        for (name, _) in table.iter() {
            assert!(table.get(name).is_some());
        }
        let _ = format!("{table:?}");

        let mut prefixed = (data.len() as u32).to_be_bytes().to_vec();
        prefixed.extend_from_slice(data);
        prefixed.extend_from_slice(b"rest");
        assert_eq!(Table::parse_prefixed(&prefixed), Ok((table, b"rest".as_slice())));
        // Nothing shorter is the same table.
        for cut in cuts(data.len()) {
            assert_ne!(Table::validate(&data[..cut]), Ok(table));
        }
    }
    if let Ok(array) = Array::validate(data) {
        let copy = copied_array(array, 1);
        assert_eq!(copy.as_array().raw().len(), data.len());
        assert_eq!(Array::validate(copy.as_array().raw()), Ok(copy.as_array()));
        let _ = format!("{array:?}");
    }
    if let Err(TableError::TooDeep) = Table::validate(data) {
        // Every level above the refused one cost at least a tag and a length.
        assert!(data.len() > (TABLE_DEPTH_MAX - 1) * 5);
    }
}

/// What a socket might bring: frames one after the other, in pieces of any size.
///
/// The first byte seeds the sizes of the pieces. However they fall, the same frames come out and
/// the same error ends them.
pub fn connection_bytes(data: &[u8]) {
    let Some((&seed, stream)) = data.split_first() else { return };
    let (frames, end) = frames_of(stream);
    for frame in &frames {
        match frame.kind {
            FrameKind::Method => method(frame.payload),
            FrameKind::Header => {
                let _ = ContentHeader::parse(frame.payload);
            }
            FrameKind::Body | FrameKind::Heartbeat => {}
        }
    }

    let mut pieces = usize::from(seed);
    let mut received = Vec::new();
    let mut taken = 0;
    let mut count = 0;
    let mut failed = None;
    let mut rest = stream;
    while failed.is_none() && !rest.is_empty() {
        pieces = pieces.wrapping_mul(167).wrapping_add(13) & 0xff;
        let (piece, after) = rest.split_at(rest.len().min(pieces % 61 + 1));
        received.extend_from_slice(piece);
        rest = after;
        loop {
            match read_frame(&received[taken..], FRAME_MAX_BYTES) {
                Ok(Some(frame)) => {
                    assert_eq!(Some(&frame), frames.get(count));
                    count += 1;
                    taken += frame.size_bytes();
                }
                Ok(None) => break,
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
    }
    assert_eq!(count, frames.len());
    assert_eq!(failed, end);
}

const FRAME_MAX_BYTES: u32 = 8192;

fn frames_of(mut stream: &[u8]) -> (Vec<Frame<'_>>, Option<FrameError>) {
    let mut frames = Vec::new();
    loop {
        match read_frame(stream, FRAME_MAX_BYTES) {
            Ok(Some(frame)) => {
                stream = &stream[frame.size_bytes()..];
                frames.push(frame);
            }
            Ok(None) => return (frames, None),
            Err(error) => return (frames, Some(error)),
        }
    }
}

/// Where to cut `length` bytes: everywhere near both ends, here and there between.
fn cuts(length: usize) -> impl Iterator<Item = usize> {
    (0..length).filter(move |cut| *cut < 24 || length - cut < 8 || cut % 97 == 0)
}

fn copied_table(table: Table<'_>, depth: usize) -> TableBuf {
    assert!(depth <= TABLE_DEPTH_MAX);
    let mut copy = TableBuf::new();
    for (name, value) in table.iter() {
        copied(value, depth, |value| copy.push(name, value));
    }
    copy
}

fn copied_array(array: Array<'_>, depth: usize) -> ArrayBuf {
    assert!(depth <= TABLE_DEPTH_MAX);
    let mut copy = ArrayBuf::new();
    for value in array.iter() {
        copied(value, depth, |value| copy.push(value));
    }
    copy
}

fn copied(value: Value<'_>, depth: usize, push: impl FnOnce(Value<'_>)) {
    assert!(!value.type_name().is_empty());
    match value {
        Value::Table(table) => push(Value::Table(copied_table(table, depth + 1).as_table())),
        Value::Array(array) => push(Value::Array(copied_array(array, depth + 1).as_array())),
        value => push(value),
    }
}
