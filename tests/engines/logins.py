"""Logins at a RabbitMQ over TLS: by name and password, by a client's certificate, and what is refused. Called by run.py."""
import subprocess

LOGIN_S = 30


def openssl(directory, *arguments):
    done = subprocess.run(["openssl", *arguments], cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(f"run.py: openssl {arguments[0]} failed: {done.stdout}")


def authority(directory, name):
    """An authority of our own: NAME.pem and NAME.key."""
    openssl(
        directory, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
        "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}",
        "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign,cRLSign",
    )  # fmt: skip


def vouched(directory, name, by, usage):
    """A key and a certificate for NAME."""
    openssl(
        directory, "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
        "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}",
    )  # fmt: skip
    (directory / f"{name}.ext").write_text(f"subjectAltName=DNS:{name}\nextendedKeyUsage={usage}\nbasicConstraints=CA:FALSE\n")
    openssl(
        directory, "x509", "-req", "-in", f"{name}.csr", "-CA", f"{by}.pem", "-CAkey", f"{by}.key", "-CAcreateserial",
        "-days", "2", "-out", f"{name}.pem", "-extfile", f"{name}.ext",
    )  # fmt: skip


def rabbitmq(conformance, directory, port):
    """A RabbitMQ with a TLS port, which takes who has a certificate of the authority, and who has none."""
    broker = conformance.RabbitMq(directory / "rabbitmq")
    extra = (directory / "rabbitmq").with_suffix(".conf")
    options = {
        "listeners.ssl.default": f"127.0.0.1:{port}",
        "ssl_options.cacertfile": directory / "ca.pem",
        "ssl_options.certfile": directory / "localhost.pem",
        "ssl_options.keyfile": directory / "localhost.key",
        "ssl_options.verify": "verify_peer",
        "ssl_options.fail_if_no_peer_cert": "false",
        "ssl_cert_login_from": "common_name",
        "auth_mechanisms.1": "PLAIN",
        "auth_mechanisms.2": "EXTERNAL",
    }
    extra.write_text("".join(f"{key} = {value}\n" for key, value in options.items()))
    broker.environment = dict(broker.environment, RABBITMQ_EXTRA_PLUGINS="rabbitmq_auth_mechanism_ssl")
    return broker


def run(options, work, conformance, lines_of, ports):
    """Lines as the engines' program prints them, and what is wrong with the whole, or None."""
    work.mkdir(exist_ok=True)
    for name in ("ca", "stranger"):
        authority(work, name)
    vouched(work, "localhost", "ca", "serverAuth")
    # Users of the definitions that conformance begins with, and somebody who is none.
    for name in ("guest", "nobody"):
        vouched(work, name, "ca", "clientAuth")
    vouched(work, "forger", "stranger", "clientAuth")
    (port,) = ports(1)
    broker = rabbitmq(conformance, work, port)
    trusted = f"cacertfile={work}/ca.pem"

    def certificate(name):
        return f"certfile={work}/{name}.pem&keyfile={work}/{name}.key"

    def uri(user="guest:guest@", host="localhost", *parameters):
        return f"amqps://{user}{host}:{port}/%2f?" + "&".join(parameters)

    external = "auth_mechanism=external"
    accepted = (
        ("plain-over-tls", uri("guest:guest@", "localhost", trusted)),
        ("external", uri("", "localhost", trusted, certificate("guest"), external)),
        ("another-name-in-the-certificate", uri("guest:guest@", "127.0.0.1", trusted, "server_name_indication=localhost")),
    )
    refused = (
        ("wrong-authority", "no authority that is trusted here",
         uri("guest:guest@", "localhost", f"cacertfile={work}/stranger.pem")),
        ("wrong-host", "the certificate of another host", uri("guest:guest@", "127.0.0.1", trusted)),
        ("wrong-password", "ACCESS_REFUSED", uri("guest:secret@", "localhost", trusted)),
        ("certificate-of-nobody", "ACCESS_REFUSED", uri("", "localhost", trusted, certificate("nobody"), external)),
        ("external-without-certificate", "ACCESS_REFUSED", uri("", "localhost", trusted, external)),
        # With TLS 1.3 the broker says why after the handshake, and a reset may overtake it.
        ("certificate-of-another-authority", "the connection was lost", uri("", "localhost", trusted, certificate("forger"), external)),
        ("no-tls-there", "is it amqp://?", None),
    )  # fmt: skip
    lines, problems = [], []
    try:
        broker.start()
        for name, address in accepted:
            found, problem = lines_of([options.engines, "login", "--uri", address, "--user", "guest", "--name", name], LOGIN_S)
            lines += found
            problems += [f"{name}: {problem}"] * bool(problem)
        for name, why, address in refused:
            address = address or broker.uri.replace("amqp:", "amqps:") + f"?{trusted}"
            command = [options.forebay, "publish", "--url", address, "--queue", "refused"]
            said = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=LOGIN_S)
            failed = None
            if said.returncode != 1 or why not in said.stderr or len(said.stderr.splitlines()) != 1 or "secret" in said.stderr:
                failed = f"exit code {said.returncode}: {said.stderr}"
            promise = f"a login that cannot be is refused in one sentence with `{why}`"
            lines.append({"case": f"login.{name}", "promise": promise, "failed": failed, "saw": {}})
    finally:
        broker.stop()
    return lines, "; ".join(problems) or None
