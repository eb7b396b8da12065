//! What directives accept, refuse and suggest.

use super::*;

fn args(line: &str) -> Vec<String> {
    split(line).unwrap()
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
            "{} works and is not documented",
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
    assert_eq!(config.text("requirepass"), "a b");
    assert_eq!(config.text("bind"), "127.0.0.1 ::1");
    assert_eq!(config.without_effect(), [""; 0]);
    assert_eq!(config.text("save"), "60 1 5 9", "they add up");
}

#[test]
fn arguments_are_those_of_redis_server() {
    let of = |args: &[&str]| {
        let args: Vec<_> = args.iter().map(|&arg| arg.to_owned()).collect();
        Config::from_args(&args)
    };
    let text = |args: &[&str], name: &str| {
        let config = of(args).unwrap();
        config.get_matching(|found| found == name).remove(0).1
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
    assert!(read("daemonize yes").contains("daemonize can only be no: start it from"));
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
        let pairs: Vec<_> = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
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
    assert!(set(&[("activedefrag", "yes")]).unwrap_err().contains("can only be no"));
    assert_eq!(set(&[("maxmemory", "1gb"), ("save", "")]), Ok(vec!["maxmemory", "save"]));
    assert_eq!(config.int("maxmemory"), 1 << 30);
    assert_eq!(config.int("timeout"), 5);
    assert_eq!(config.choice("appendfsync"), "always");
}
