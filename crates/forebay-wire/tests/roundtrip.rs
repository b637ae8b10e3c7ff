//! Properties of the codec: everything that can be written reads back, nothing makes it panic, and
//! it does not matter how the network cuts the bytes.

mod support;

use forebay_wire::{
    ContentHeader, FRAME_END, Frame, FrameKind, Method, ShortStr, Table, Value, read_frame,
    write_body_frame, write_heartbeat, write_method, write_properties_frame,
};
use proptest::collection::vec;
use proptest::prelude::*;
use support::fuzz_bodies;
use support::pool::{Draw, all_methods, owned_table, pairs, pool, table_buf};

proptest! {
    #[test]
    fn every_method_reads_back_as_it_was_written(pool in pool()) {
        for method in all_methods(&Draw::new(&pool)) {
            let mut payload = Vec::new();
            method.encode(&mut payload);
            prop_assert_eq!(Method::parse(&payload), Ok(method));
            prop_assert_eq!(
                forebay_wire::method_ids(&payload),
                (method.class_id(), method.method_id())
            );

            // Neither one byte less nor one more is that method.
            prop_assert!(Method::parse(&payload[..payload.len() - 1]).is_err());
            payload.push(0);
            prop_assert!(Method::parse(&payload).is_err());
        }
    }

    #[test]
    fn properties_read_back_and_keep_their_bytes(
        pool in pool(), channel: u16, class_id: u16, size: u64,
    ) {
        let properties = Draw::new(&pool).properties();
        let mut out = Vec::new();
        write_properties_frame(&mut out, channel, class_id, size, &properties);
        let frame = read_frame(&out, 0).unwrap().unwrap();
        prop_assert_eq!((frame.kind, frame.channel), (FrameKind::Header, channel));
        let header = ContentHeader::parse(frame.payload).unwrap();
        prop_assert_eq!((header.class_id, header.body_size_bytes), (class_id, size));
        prop_assert_eq!(header.properties.parse(), properties);
        prop_assert_eq!(header.properties.delivery_mode(), properties.delivery_mode);
        prop_assert_eq!(header.properties.headers(), properties.headers);

        let cut = &frame.payload[..frame.payload.len() - 1];
        prop_assert!(ContentHeader::parse(cut).is_err());
        let longer = [frame.payload, &[0]].concat();
        prop_assert!(ContentHeader::parse(&longer).is_err());
    }

    #[test]
    fn tables_read_back_value_by_value(pairs in pairs()) {
        let buf = table_buf(&pairs);
        let table = Table::validate(buf.as_table().raw()).unwrap();
        prop_assert_eq!(owned_table(table), pairs.clone());
        for (name, _) in &pairs {
            prop_assert!(table.get(name).is_some());
        }
        prop_assert_eq!(table.is_empty(), pairs.is_empty());
    }

    #[test]
    fn however_the_input_is_cut_the_frames_are_the_same(
        pool in pool(), body in vec(any::<u8>(), 0..300), seed: u8,
    ) {
        let mut stream = vec![seed];
        let draw = Draw::new(&pool);
        for method in all_methods(&draw).into_iter().take(12) {
            // Only structs have an encoding of their own; a method frame is its payload framed.
            let mut payload = Vec::new();
            method.encode(&mut payload);
            let start = stream.len();
            write_body_frame(&mut stream, 7, &payload);
            stream[start] = FrameKind::Method as u8;
        }
        write_properties_frame(&mut stream, 7, 60, body.len() as u64, &draw.properties());
        write_body_frame(&mut stream, 7, &body);
        write_heartbeat(&mut stream);
        fuzz_bodies::connection_bytes(&stream);
        // The same with the end octet of the last frame broken.
        if let Some(last) = stream.last_mut() {
            *last = FRAME_END ^ 0xff;
        }
        fuzz_bodies::connection_bytes(&stream);
    }

    #[test]
    fn a_frame_cut_at_any_byte_is_incomplete(channel: u16, body in vec(any::<u8>(), 0..200)) {
        let mut out = Vec::new();
        write_body_frame(&mut out, channel, &body);
        for cut in 0..out.len() {
            prop_assert_eq!(read_frame(&out[..cut], 4096), Ok(None));
        }
        let frame = Frame { kind: FrameKind::Body, channel, payload: &body };
        prop_assert_eq!(read_frame(&out, 4096), Ok(Some(frame)));
    }

    #[test]
    fn arbitrary_bytes_never_panic(data in vec(any::<u8>(), 0..400)) {
        for (_, body) in fuzz_bodies::TARGETS {
            body(&data);
        }
    }

    #[test]
    fn a_uri_survives_percent_encoding(
        user in "[^\u{0}]{1,20}", password in "\\PC{0,20}", vhost in "\\PC{0,20}", port in 1u16..,
    ) {
        let text = format!(
            "amqp://{}:{}@broker.example:{port}/{}?heartbeat=10",
            encoded(&user), encoded(&password), encoded(&vhost),
        );
        let uri = forebay_wire::AmqpUri::parse(&text).unwrap();
        prop_assert_eq!(uri.username, user);
        prop_assert_eq!(uri.password, password);
        prop_assert_eq!(uri.vhost, vhost);
        prop_assert_eq!(uri.port, port);
    }

    #[test]
    fn any_text_is_a_uri_or_a_clear_error(text in "(amqps?://)?\\PC{0,60}") {
        if let Err(error) = forebay_wire::AmqpUri::parse(&text) {
            prop_assert!(!error.to_string().is_empty());
        }
    }
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

#[test]
fn a_method_frame_is_its_payload_with_head_and_end() {
    let publish = forebay_wire::basic::Publish {
        exchange: ShortStr::truncated("logs"),
        mandatory: true,
        ..Default::default()
    };
    let mut out = Vec::new();
    write_method(&mut out, 3, &publish);
    assert_eq!(out, b"\x01\0\x03\0\0\0\x0d\0\x3c\0\x28\0\0\x04logs\0\x01\xce");
}

#[test]
fn every_integer_tag_is_a_number_of_its_own_name() {
    for (value, name) in [
        (Value::I8(-1), "byte"),
        (Value::I16(-1), "short"),
        (Value::I32(-1), "signedint"),
        (Value::I64(-1), "long"),
    ] {
        assert_eq!((value.as_i64(), value.type_name()), (Some(-1), name));
    }
    for (value, name) in [
        (Value::U8(200), "unsignedbyte"),
        (Value::U16(200), "unsignedshort"),
        (Value::U32(200), "unsignedint"),
    ] {
        assert_eq!((value.as_i64(), value.type_name()), (Some(200), name));
    }
    assert_eq!(Value::Timestamp(200).as_i64(), None);
}
