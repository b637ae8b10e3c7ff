//! `--url`: the broker that a command talks to.

/// A broker, given or found in the environment.
#[derive(clap::Args, Debug)]
pub(crate) struct BrokerUrl {
    /// The broker
    #[arg(
        long,
        env = "FOREBAY_URL",
        value_name = "URL",
        default_value = "amqp://guest:guest@127.0.0.1:5672/%2f",
        hide_env_values = true
    )]
    pub(crate) url: String,
}
