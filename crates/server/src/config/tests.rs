//! What directives accept, refuse and suggest.

use super::*;

fn args(line: &str) -> Vec<String> {
    split(line.as_bytes())
        .unwrap()
        .into_iter()
        .map(|word| String::from_utf8(word).unwrap())
        .collect()
}

#[test]
fn every_default_is_a_value_and_names_are_unique() {
    let config = Config::default();
    for row in DIRECTIVES {
        let shown = config.get_matching(|name| name == row.name);
        assert_eq!(shown.len(), 1, "{}", row.name);
        assert_eq!(
            DIRECTIVES.iter().filter(|r| r.name == row.name || r.alias == row.name).count(),
            1
        );
        assert!(
            matches!(row.effect, Effect::None | Effect::OnlyDefault(_)) || !row.doc.is_empty(),
            "{} has an effect, but is not documented",
            row.name
        );
    }
    assert_eq!(config.text("bind"), "127.0.0.1 -::1");
    assert_eq!(config.choice("appendfsync"), "everysec");
    assert!(config.yes("appendonly"));
    assert!(config.without_effect().is_empty());
}

#[test]
fn flags_override_the_file_and_take_several_words() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("slimio.conf");
    let other = dir.path().join("other.conf");
    std::fs::write(&other, "timeout 7\n").unwrap();
    std::fs::write(
        &file,
        format!(
            "# a comment\n\nport 7000\nsave 60 1\nsave 5 9\ninclude {}\nrequirepass \"a b\"\n",
            other.display()
        ),
    )
    .unwrap();
    let line =
        format!("{} --port 7001 --bind 127.0.0.1 ::1 --list-max-listpack-size -2", file.display());
    let config = Config::from_args(&args(&line)).unwrap();
    assert_eq!(config.int("port"), 7001);
    assert_eq!(config.int("timeout"), 7);
    assert_eq!(config.bytes("requirepass"), b"a b");
    assert_eq!(config.text("bind"), "127.0.0.1 ::1");
    assert_eq!(config.without_effect(), [""; 0]);
    assert_eq!(config.text("save"), "60 1 5 9", "the save points must add up");
}

#[test]
fn arguments_are_those_of_redis_server() {
    let of = |args: &[&str]| {
        let args: Vec<_> = args.iter().map(|&arg| arg.to_owned()).collect();
        Config::from_args(&args)
    };
    let text = |args: &[&str], name: &str| {
        let config = of(args).unwrap();
        String::from_utf8(config.get_matching(|found| found == name).remove(0).1).unwrap()
    };
    for nothing in [
        &["--save"][..],
        &["--save", ""],
        &["--save", "--timeout", "1"],
        &["--save ''"],
        &["--save", "9 1", "--save"],
    ] {
        assert_eq!(text(nothing, "save"), "", "{nothing:?}");
    }
    assert_eq!(text(&["--save 9 1"], "save"), "9 1");
    assert_eq!(text(&["--save 9 1", "30", "5"], "save"), "9 1 30 5");
    assert_eq!(text(&["--maxmemory 7mb", "--timeout", "1"], "maxmemory"), "7340032");
    assert_eq!(text(&["--bind 127.0.0.1 ::1"], "bind"), "127.0.0.1 ::1");
    assert_eq!(text(&["--requirepass", "--secret"], "requirepass"), "--secret");
    assert_eq!(text(&["--requirepass=--timeout"], "requirepass"), "--timeout");
    assert_eq!(text(&["--requirepass", "a=b"], "requirepass"), "a=b");
    for (wrong, why) in [
        (&["--requirepass", "--timeout", "1"][..], "requirepass needs a value"),
        (&["--maxmemory 7mb --timeout 1"], "wrong number of arguments"),
        (&["--requirepass \"a"], "unbalanced quotes"),
        (&["--nosuch=1"], "unknown directive 'nosuch'"),
        (&["--port"], "port needs a value"),
    ] {
        let error = of(wrong).unwrap_err().0;
        assert!(error.contains(why), "{wrong:?}: {error}");
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("slimio.conf");
    std::fs::write(&file, "save 9 1\nsave\n").unwrap();
    assert_eq!(text(&[file.to_str().unwrap()], "save"), "");
}

#[test]
fn what_is_wrong_is_named_with_its_place_and_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("slimio.conf");
    let read = |text: &str| {
        std::fs::write(&file, text).unwrap();
        Config::from_args(&[file.to_string_lossy().into_owned()]).unwrap_err().0
    };
    assert!(
        read("port 1\nappendfysnc no\n").ends_with(
            "slimio.conf:2: unknown directive 'appendfysnc'; did you mean 'appendfsync'?"
        )
    );
    assert!(read("port 99999").contains("port: argument must be between 0 and 65535 inclusive"));
    assert!(read("port").contains("port needs a value"));
    assert!(read("daemonize yes").contains("daemonize can only be no: start the server from"));
    assert!(read("cluster-enabled yes").contains("cluster-enabled can only be no"));
    assert!(read("requirepass \"open").contains("unbalanced quotes"));
    assert!(read(&format!("include {}", file.display())).contains("nested too deep"));

    std::fs::write(&file, "daemonize yes\nport 7\n").unwrap();
    let overridden = format!("{} --daemonize no", file.display());
    assert_eq!(Config::from_args(&args(&overridden)).unwrap().int("port"), 7);
    let twice = format!("{} --daemonize no --daemonize yes", file.display());
    let error = Config::from_args(&args(&twice)).unwrap_err().0;
    assert!(error.starts_with("argument --daemonize: daemonize can only be no"), "{error}");

    let flags = |line: &str| Config::from_args(&args(line)).unwrap_err().0;
    assert!(flags("--prot 1").contains("did you mean 'port'?"));
    assert!(flags("--port 1 --").contains("argument"));
    assert!(flags("/no/such/file").contains("cannot read the configuration file /no/such/file"));
}

#[test]
fn config_set_is_all_or_nothing_with_the_texts_of_redis() {
    let mut config = Config::default();
    let mut set = |pairs: &[(&str, &str)]| {
        let pairs: Vec<_> = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).into())).collect();
        config.set_pairs(&pairs)
    };
    assert_eq!(
        set(&[("timeout", "5"), ("APPENDFSYNC", "always")]),
        Ok(vec!["timeout", "appendfsync"])
    );
    assert_eq!(
        set(&[("timeout", "9"), ("foo", "1")]),
        Err("Unknown option or number of arguments for CONFIG SET - 'foo'".into())
    );
    assert_eq!(
        set(&[("timeout", "9"), ("maxclients", "0")]),
        Err("CONFIG SET failed (possibly related to argument 'maxclients') - \
             argument must be between 1 and 4294967295 inclusive"
            .into())
    );
    assert_eq!(
        set(&[("hz", "1"), ("hz", "2")]),
        Err("CONFIG SET failed (possibly related to argument 'hz') - duplicate parameter".into())
    );
    assert_eq!(
        set(&[("databases", "3")]),
        Err("CONFIG SET failed (possibly related to argument 'databases') - \
             can't set immutable config"
            .into())
    );
    assert_eq!(
        set(&[("hz", "x"), ("databases", "3")]),
        Err("CONFIG SET failed (possibly related to argument 'databases') - \
             can't set immutable config"
            .into()),
        "immutable directives must be refused before values are checked"
    );
    assert_eq!(
        set(&[("Databases", "3"), ("foo", "1")]),
        Err("CONFIG SET failed (possibly related to argument 'Databases') - \
             can't set immutable config"
            .into()),
        "the first error must be reported"
    );
    assert_eq!(
        set(&[("Slave-Priority", "x")]),
        Err("CONFIG SET failed (possibly related to argument 'slave-priority') - \
             argument couldn't be parsed into an integer"
            .into())
    );
    assert_eq!(
        set(&[("hash-max-ziplist-entries", "7"), ("hash-max-listpack-entries", "8")]),
        Ok(vec!["hash-max-listpack-entries", "hash-max-listpack-entries"]),
        "an alias must count as another parameter"
    );
    assert!(
        set(&[("hash-max-ziplist-entries", "7"), ("HASH-max-ziplist-entries", "8")])
            .unwrap_err()
            .contains("'HASH-max-ziplist-entries') - duplicate parameter")
    );
    assert!(set(&[("activedefrag", "yes")]).unwrap_err().contains("can only be no"));
    assert_eq!(set(&[("maxmemory", "1gb"), ("save", "")]), Ok(vec!["maxmemory", "save"]));
    assert_eq!(config.int("maxmemory"), 1 << 30);
    assert_eq!(config.int("timeout"), 5);
    assert_eq!(config.int("hash-max-listpack-entries"), 8, "the last value must count");
    assert_eq!(config.choice("appendfsync"), "always");
}

#[test]
fn bytes_that_are_no_utf8_are_read_and_shown_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("slimio.conf");
    std::fs::write(&file, b"# caf\xe9\ntimeout 7 \nrequirepass \xe9t\xe9\r\n").unwrap();
    let config = Config::from_args(&[&file]).unwrap();
    assert_eq!(config.int("timeout"), 7);
    assert_eq!(config.bytes("requirepass"), b"\xe9t\xe9");
    assert_eq!(config.get_matching(|name| name == "requirepass")[0].1, b"\xe9t\xe9");
    let flag = OsStr::from_bytes(b"\xff--");
    let config = Config::from_args(&[OsStr::new("--requirepass"), flag]).unwrap();
    assert_eq!(config.bytes("requirepass"), b"\xff--");
    for (text, why) in [
        (&b"volume caf\xe9"[..], ":1: volume: argument must be UTF-8 text"),
        (b"bind \xe9", ":1: bind: argument must be UTF-8 text"),
        (b"caf\xe9 1", ":1: unknown directive 'caf\u{fffd}'"),
        (b"timeout 1\xe9", ":1: timeout: argument couldn't be parsed into an integer"),
    ] {
        std::fs::write(&file, text).unwrap();
        let error = Config::from_args(&[&file]).unwrap_err().0;
        assert!(error.ends_with(why), "{error}");
    }
}

#[test]
fn include_takes_a_pattern_and_is_seen_from_dir() {
    let place = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = place.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("conf.d/10.conf", "timeout 1\nhz 11\n");
    write("conf.d/20.conf", "timeout 2\n");
    write("conf.d/.hidden.conf", "timeout 3\n");
    write("conf.d/30.txt", "timeout 4\n");
    write("conf.d/40.conf/in.conf", "timeout 5\n");
    write("other/sub/x.conf", "timeout 6\ndir further\ninclude y.conf\n");
    write("other/sub/further/y.conf", "hz 66\n");
    let file = place.path().join("slimio.conf");
    let at = place.path().display();
    let read = |text: String| {
        std::fs::write(&file, text).unwrap();
        Config::from_args(&[&file])
    };
    let numbers = |text: String| {
        let config = read(text).unwrap();
        (config.int("timeout"), config.int("hz"))
    };
    assert_eq!(numbers(format!("include {at}/conf.d/*.conf")), (2, 11), "in order");
    assert_eq!(numbers(format!("include {at}/conf.d/[!2]0.conf")), (1, 11));
    assert_eq!(numbers(format!("include {at}/c*/.h?dden.conf")), (3, 10));
    assert_eq!(numbers(format!("include {at}/*/sub/no*.conf\ntimeout 9")), (9, 10), "no match");
    assert_eq!(numbers(format!("dir {at}/other\ndir sub\ninclude x.conf")), (6, 66));
    assert_eq!(numbers(format!("dir {at}\ninclude */*[123]0.conf")), (2, 11));
    let config = read(format!("dir {at}/other\ndir sub\n")).unwrap();
    assert_eq!(config.path("dir"), place.path().join("other/sub"));
    for (text, why) in [
        ("include".to_owned(), "include takes one file, or one pattern"),
        ("include a b".to_owned(), "include takes one file, or one pattern"),
        (format!("dir {at}\ninclude no.conf"), "/no.conf: No such file"),
        (format!("include {at}/slimio.*"), "nested too deep, or in a circle"),
    ] {
        let error = read(text).unwrap_err().0;
        assert!(error.contains(why), "{error}");
    }
}
