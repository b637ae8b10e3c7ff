//! Why a server does not start: one sentence each, and the right one at fault.

mod rig;

use forebay_server::StartError;
use rig::*;

#[test]
fn a_taken_port_is_named() {
    let first = start(in_memory());
    let taken = address(&first).to_string();
    let mut config = in_memory();
    config.amqp = vec![taken.clone()];
    let error = start_error(config);
    assert!(matches!(error, StartError::Listen { .. }));
    assert!(error.to_string().contains(&taken), "{error}");
    assert!(!error.is_configuration());
}

#[test]
fn a_data_directory_serves_one_server_at_a_time() {
    let dir = Dir::new();
    let first = start(on_disk(&dir));
    let error = start_error(on_disk(&dir));
    let text = error.to_string();
    assert!(matches!(error, StartError::Store { .. }), "{text}");
    assert!(text.contains("in use by another process") && !text.contains('\n'), "{text}");
    first.stop().unwrap();
    start(on_disk(&dir)).stop().unwrap();
}

#[test]
fn a_data_directory_that_cannot_be_made_is_named() {
    let dir = Dir::new();
    std::fs::write(dir.path(), b"a file").unwrap();
    let error = start_error(on_disk(&dir));
    assert!(error.to_string().contains(&dir.path().display().to_string()), "{error}");
    std::fs::remove_file(dir.path()).unwrap();
}

#[test]
fn bad_configurations_are_at_fault_themselves() {
    let mut config = in_memory();
    config.frame_max_bytes = 1;
    assert!(start_error(config).is_configuration());

    let mut config = in_memory();
    config.users[0].permissions[0].read = "(".into();
    let error = start_error(config);
    assert!(error.is_configuration());
    assert!(error.to_string().contains("guest"), "{error}");

    let mut config = in_memory();
    config.users[0].password = None;
    config.users[0].password_hash = Some("nonsense".into());
    assert!(start_error(config).is_configuration());
}
