//! Settings: the meaning of their text, the positions of errors, and robustness against any text.

use proptest::prelude::*;
use thalweg_memory::{
    Backend, CrossStreamReuse, Policy, PowerTwoDivisions, Reserve, Settings, SettingsError, SizeClass,
    SnapshotValue,
};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn parse(text: &str) -> Settings {
    Settings::parse(text).unwrap_or_else(|error| panic!("{error}"))
}

fn refused(text: &str) -> SettingsError {
    Settings::parse(text).expect_err(text)
}

#[test]
fn every_key_is_read() {
    let settings = parse(
        "policy:pytorch,backend:cudaMallocAsync,large_segment_size_mb:40,segment_granularity_mb:6,max_split_size_mb:50,\
         max_non_split_rounding_mb:60,garbage_collection_threshold:0.75,roundup_power2_divisions:8,\
         per_process_memory_fraction:0.5,throw_on_cudamalloc_oom:True,release_lock_on_cudamalloc:True,\
         graph_capture_record_stream_reuse:True,expandable_segments:True,expandable_segments_reserve:0.25,\
         expandable_segments_reserve_by_class:[serving:8G],expandable_page_mb:4,stitching:True,\
         stitching_slack:0.125,cross_stream_reuse:idle,cross_stream_wait_limit:7,record_use_depth:0,last_resort:True,\
         pinned_use_background_threads:True,pinned_max_round_threshold_mb:3,pinned_max_cached_size_mb:5,\
         pinned_use_cuda_host_register:True,pinned_num_register_threads:128,pinned_reserve_segment_size_mb:9,\
         pinned_free_catch_all:True",
    );
    let built = || -> Result<Settings, SettingsError> {
        Ok(Settings::default()
            .with_policy(Policy::PyTorch)
            .with_backend(Backend::CudaMallocAsync)
            .with_large_segment_size_bytes(40 * MIB)?
            .with_segment_granularity_bytes(6 * MIB)?
            .with_max_split_size_bytes(50 * MIB)?
            .with_max_non_split_rounding_bytes(60 * MIB)?
            .with_garbage_collection_threshold(0.75)?
            .with_roundup_power2_divisions(PowerTwoDivisions::uniform(8).expect("a power of two"))
            .with_per_process_memory_fraction(0.5)?
            .with_throw_on_cudamalloc_oom(true)
            .with_release_lock_on_cudamalloc(true)
            .with_graph_capture_record_stream_reuse(true)
            .with_expandable_segments(true)
            .with_expandable_segments_reserve(Reserve::Fraction(0.25))?
            .with_expandable_segments_reserve_for_class("serving", Reserve::Gibibytes(8))?
            .with_expandable_page_bytes(4 * MIB)?
            .with_stitching(true)
            .with_stitching_slack(0.125)?
            .with_cross_stream_reuse(CrossStreamReuse::Idle)
            .with_cross_stream_wait_limit(7)
            .with_record_use_depth(0)
            .with_last_resort(true)
            .with_pinned_use_background_threads(true)
            .with_pinned_max_round_threshold_bytes(3 * MIB)?
            .with_pinned_max_cached_size_bytes(5 * MIB)?
            .with_pinned_use_cuda_host_register(true)
            .with_pinned_num_register_threads(128)?
            .with_pinned_reserve_segment_size_bytes(9 * MIB)?
            .with_pinned_free_catch_all(true))
    };
    assert_eq!(settings, built().expect("valid values"));
    assert!(settings.keys().all(|key| key.is_set), "the text above names every key");
    assert_eq!(parse(&settings.to_string()), settings);

    assert_eq!((settings.policy(), settings.backend()), (Policy::PyTorch, Backend::CudaMallocAsync));
    assert_eq!(settings.large_segment_size_bytes(), 40 * MIB);
    assert_eq!(settings.segment_granularity_bytes(), 6 * MIB);
    assert_eq!(settings.max_split_size_bytes(), Some(50 * MIB));
    assert_eq!(settings.max_non_split_rounding_bytes(), 60 * MIB);
    assert_eq!(settings.garbage_collection_threshold(), Some(0.75));
    assert_eq!(settings.roundup_power2_divisions().intervals(), [8; 16]);
    assert_eq!(settings.per_process_memory_fraction(), 0.5);
    assert!(settings.throw_on_cudamalloc_oom() && settings.release_lock_on_cudamalloc());
    assert!(settings.graph_capture_record_stream_reuse() && settings.expandable_segments());
    assert_eq!(settings.expandable_page_bytes(SizeClass::Large), 4 * MIB);
    assert!(settings.stitching() && settings.last_resort());
    assert_eq!(settings.stitching_slack(), 0.125);
    assert_eq!(settings.cross_stream_reuse(), CrossStreamReuse::Idle);
    assert_eq!((settings.cross_stream_wait_limit(), settings.record_use_depth()), (7, 0));
    assert!(settings.pinned_use_background_threads() && settings.pinned_use_cuda_host_register());
    assert_eq!(settings.pinned_max_round_threshold_bytes(), Some(3 * MIB));
    assert_eq!(settings.pinned_max_cached_size_bytes(), Some(5 * MIB));
    assert_eq!(settings.pinned_num_register_threads(), 128);
    assert_eq!(settings.pinned_reserve_segment_size_bytes(), Some(9 * MIB));
    assert!(settings.pinned_free_catch_all());
}

/// Asserts the same as PyTorch's `test_allocator_settings`, except for the resets, which do not happen here.
#[test]
fn settings_change_as_in_pytorch() {
    let start = Settings::default();
    let settings = start.apply("").expect("nothing changes");
    assert_eq!(settings, start);
    let requested = 12 * MIB + MIB / 8;
    assert_eq!(settings.round_size(requested), requested);
    let settings = settings.apply("roundup_power2_divisions:4").expect("a power of two");
    assert_eq!(settings.round_size(requested), 14 * MIB);
    let list = "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]";
    let settings = settings.apply(list).expect("a list");
    let mut expected = [1; 16];
    expected[9..].copy_from_slice(&[2, 4, 8, 8, 8, 8, 8]);
    assert_eq!(settings.roundup_power2_divisions().intervals(), expected);
    assert_eq!(settings.round_size(600 * MIB), 768 * MIB);

    let settings = settings.apply("release_lock_on_cudamalloc:True").expect("a boolean");
    assert_eq!(settings.roundup_power2_divisions().intervals(), expected, "setting one key resets no other");
    assert!(settings.release_lock_on_cudamalloc());
    assert!(
        !settings.apply("release_lock_on_cudamalloc:False").expect("a boolean").release_lock_on_cudamalloc()
    );
    let settings = settings.apply("roundup_power2_divisions:default").expect("a reset by name");
    assert_eq!(settings.round_size(requested), requested);

    for text in [
        "foo:1,bar:2",
        "garbage_collection_threshold:1.2",
        "max_split_size_mb:2",
        "segment_granularity_mb:3",
        "release_lock_on_cudamalloc:none",
        "pinned_use_cuda_host_register:none",
        "pinned_num_register_threads:none",
        "pinned_num_register_threads:1024",
        "throw_on_cudamalloc_oom:maybe",
    ] {
        assert!(settings.apply(text).is_err(), "{text} is not a setting");
    }
}

#[test]
fn the_memory_fraction_may_be_set_from_the_start() {
    let settings = parse("per_process_memory_fraction:0.5");
    assert_eq!(settings.allowed_bytes(80 * GIB + 1), Some(40 * GIB + 1));
    assert_eq!(parse("per_process_memory_fraction:1").allowed_bytes(80 * GIB), None);
    assert_eq!(parse("per_process_memory_fraction:0").allowed_bytes(80 * GIB), Some(0));
    for fraction in ["-0.1", "1.1", "nan", "inf", "1e999", "0x1p-1", "half"] {
        let error = refused(&format!("per_process_memory_fraction:{fraction}"));
        assert!(error.is_invalid_value() && error.to_string().contains("is invalid"), "{error}");
        assert_eq!((error.found(), error.column()), (fraction, Some(29)));
    }
}

#[test]
fn the_backend_is_chosen_at_the_start() {
    let text = "backend:cudaMallocAsync,max_split_size_mb:40,stitching:False";
    let settings = parse(text);
    assert_eq!(settings.backend(), Backend::CudaMallocAsync);
    assert_eq!(settings.warnings(), ["backend:cudaMallocAsync ignores max_split_size_mb, stitching"]);
    // PyTorch ignores mistakes in keys that the backend ignores.
    let error = refused("backend:cudaMallocAsync,max_split_size_mb:16");
    assert_eq!(error.key(), Some("max_split_size_mb"));

    assert_eq!(settings.apply(text).as_ref(), Ok(&settings), "the same one may be named again");
    for change in ["backend:native", "backend:default"] {
        let error = settings.apply(change).expect_err("another one may not");
        assert_eq!((error.key(), error.byte_range()), (Some("backend"), Some(8..change.len())));
    }
    assert!(refused("backend:cudamallocasync").is_invalid_value());
}

#[test]
fn a_policy_gives_defaults_and_explicit_keys_win() {
    let thalweg = Settings::default();
    assert!(thalweg.expandable_segments() && thalweg.stitching() && thalweg.last_resort());
    assert_eq!(thalweg.cross_stream_reuse(), CrossStreamReuse::Idle);
    assert_eq!(thalweg.expandable_page_bytes(SizeClass::Large), 8 * MIB);
    let pytorch = parse("policy:pytorch");
    assert!(!pytorch.expandable_segments() && !pytorch.stitching() && !pytorch.last_resort());
    assert_eq!(pytorch.cross_stream_reuse(), CrossStreamReuse::Never);
    assert_eq!(pytorch.expandable_page_bytes(SizeClass::Large), 20 * MIB);
    assert_eq!(pytorch.expandable_page_bytes(SizeClass::Small), 2 * MIB);

    for text in ["stitching:True,policy:pytorch", "policy:pytorch,stitching:True"] {
        let settings = parse(text);
        assert!(settings.stitching() && !settings.last_resort(), "{text}");
        assert!(settings.is_set("stitching") && !settings.is_set("last_resort"));
    }
    let later = parse("stitching:False").apply("policy:thalweg").expect("valid");
    assert!(!later.stitching(), "a policy that comes later overrides no key either");
    let without = later.without("stitching").expect("a known key");
    assert!(without.stitching());
}

#[test]
fn the_large_segment_bounds_two_keys_wherever_it_stands() {
    for text in [
        "large_segment_size_mb:16,max_split_size_mb:17,policy:pytorch",
        "max_split_size_mb:17,policy:pytorch,large_segment_size_mb:16",
    ] {
        let settings = parse(text);
        assert_eq!(settings.max_split_size_bytes(), Some(17 * MIB));
        assert_eq!(settings.max_non_split_rounding_bytes(), 16 * MIB, "it follows unless it is set");
        assert_eq!(settings.expandable_page_bytes(SizeClass::Large), 16 * MIB);
    }
    assert!(refused("large_segment_size_mb:10").is_invalid_value());
    let error = refused("max_non_split_rounding_mb:30,large_segment_size_mb:40");
    assert_eq!((error.key(), error.found()), (Some("max_non_split_rounding_mb"), "30"));
    assert_eq!(error.byte_range(), Some(26..28));

    let settings = parse("max_split_size_mb:30");
    let error = settings.apply("large_segment_size_mb:40").expect_err("30 is less");
    assert_eq!(
        (error.key(), error.expected()),
        (Some("large_segment_size_mb"), "at most 30 (`max_split_size_mb`)")
    );
    let both = settings.apply("large_segment_size_mb:40,max_split_size_mb:40").expect("both change");
    assert_eq!(both.without("max_split_size_mb").map(|left| left.max_split_size_bytes()), Ok(None));
    let small = parse("large_segment_size_mb:11,max_split_size_mb:11");
    let error = small.without("large_segment_size_mb").expect_err("11 is less than 20");
    assert_eq!((error.key(), error.text()), (Some("max_split_size_mb"), None));
    assert!(small.with_large_segment_size_bytes(12 * MIB).is_err());
}

#[test]
fn a_list_of_divisions_is_read_as_pytorch_reads_it() {
    let table: [(&str, &[u64]); 8] = [
        ("[]", &[0; 16]),
        ("[64:8,256:4,>:1]", &[8, 8, 8, 8, 8, 8, 8, 0, 4, 1, 1, 1, 1, 1, 1, 1]),
        // There is no entry before `>`, so nothing below 2 MiB is above one.
        ("[>:4]", &[0, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4]),
        ("[2:2]", &[2, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        ("[32768:2]", &[2; 16]),
        ("[1099511627776:2,]", &[2; 16]),
        ("[8:2,2:4]", &[2, 4, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        ("16", &[16; 16]),
    ];
    for (text, intervals) in table {
        let settings = parse(&format!("roundup_power2_divisions:{text}"));
        assert_eq!(settings.roundup_power2_divisions().intervals(), intervals, "{text}");
    }
}

#[test]
fn a_reservation_is_looked_up_by_class() {
    let settings = parse(
        "expandable_segments_reserve:0.5,expandable_segments_reserve_by_class:[serving:0.25,sparse:8G]",
    );
    let bytes = |class| settings.expandable_segments_reserve_bytes(class, 80 * GIB);
    assert_eq!(bytes(None), 40 * GIB);
    assert_eq!(bytes(Some("serving")), 20 * GIB);
    assert_eq!(bytes(Some("sparse")), 8 * GIB);
    assert_eq!(bytes(Some("other")), 40 * GIB);
    assert_eq!(Settings::default().expandable_segments_reserve_bytes(None, 80 * GIB), 90 * GIB);
    let huge = parse("expandable_segments_reserve:18446744073709551615G");
    assert_eq!(huge.expandable_segments_reserve_bytes(None, 80 * GIB), 90 * GIB);
    let name = Settings::default().with_expandable_segments_reserve_for_class("a b", Reserve::Gibibytes(1));
    assert!(name.is_err_and(|error| error.is_invalid_value()));
}

#[test]
fn the_first_variable_that_is_set_wins() {
    let settings = |variables: &'static [(&str, &str)]| {
        Settings::from_environment(|wanted| {
            let found = variables.iter().find(|(name, _)| *name == wanted);
            found.map(|(_, value)| (*value).to_owned())
        })
    };
    assert_eq!(settings(&[]), Ok(Settings::default()));
    let both = settings(&[
        ("PYTORCH_ALLOC_CONF", "stitching:False"),
        ("PYTORCH_CUDA_ALLOC_CONF", "last_resort:False"),
    ]);
    assert_eq!(both, Ok(Settings::default().with_last_resort(false)));
    let empty = settings(&[("PYTORCH_ALLOC_CONF", "stitching:False"), ("PYTORCH_CUDA_ALLOC_CONF", "")]);
    assert_eq!(empty, Ok(Settings::default()));
    let other = settings(&[("PYTORCH_HIP_ALLOC_CONF", "rubbish"), ("PYTORCH_ALLOC_CONF", "stitching:False")]);
    assert_eq!(other, Ok(Settings::default().with_stitching(false)));

    for (value, caching) in [("1", false), ("0", true), ("", true), ("yes", false)] {
        let settings = Settings::from_environment(|name| {
            (name == "PYTORCH_NO_CUDA_MEMORY_CACHING").then(|| value.to_owned())
        });
        assert_eq!(settings.map(|settings| settings.caching()), Ok(caching), "{value:?}");
    }

    let error = settings(&[("PYTORCH_ALLOC_CONF", "stitching")]).expect_err("no value");
    assert_eq!(error.variable(), Some("PYTORCH_ALLOC_CONF"));
    assert_eq!(
        error.to_string(),
        "PYTORCH_ALLOC_CONF, column 10: expected `:` and a value, found the end of the text
  stitching
           ^"
    );
}

/// A text, the column, the wrong part (empty at the end), the key, and the expectation in the message.
type Refusal = (&'static str, usize, &'static str, Option<&'static str>, &'static str);

#[test]
fn errors_point_at_the_character() {
    let divisions = Some("roundup_power2_divisions");
    let classes = Some("expandable_segments_reserve_by_class");
    let refusals: [Refusal; 28] = [
        ("max_split_sise_mb:40", 1, "max_split_sise_mb", Some("max_split_sise_mb"), "policy"),
        (",stitching:True", 1, ",", None, "a key"),
        ("stitching:True,,", 16, ",", None, "a key"),
        ("stitching:True]", 15, "]", Some("stitching"), "`,`"),
        ("stitching:True last_resort:True", 16, "last_resort", Some("stitching"), "`,`"),
        ("stitching True", 11, "True", Some("stitching"), "`:`"),
        ("stitching::True", 11, ":", Some("stitching"), "`True` or `False`"),
        ("stitching:", 11, "", Some("stitching"), "`True` or `False`"),
        ("stitching:true", 11, "true", Some("stitching"), "`True` or `False`"),
        ("stitching:1", 11, "1", Some("stitching"), "`True` or `False`"),
        ("stitching:[True]", 11, "[", Some("stitching"), "`True` or `False`"),
        ("max_split_size_mb:40MB", 19, "40MB", Some("max_split_size_mb"), "MiB"),
        ("max_split_size_mb:+40", 19, "+40", Some("max_split_size_mb"), "MiB"),
        ("max_split_size_mb: 19", 20, "19", Some("max_split_size_mb"), "at least 20"),
        (
            "max_split_size_mb:99999999999999999999",
            19,
            "99999999999999999999",
            Some("max_split_size_mb"),
            "MiB",
        ),
        ("max_split_size_mb:17592186044416", 19, "17592186044416", Some("max_split_size_mb"), "MiB"),
        ("garbage_collection_threshold:0", 30, "0", Some("garbage_collection_threshold"), "between"),
        ("pinned_reserve_segment_size_mb:0", 32, "0", Some("pinned_reserve_segment_size_mb"), "at least 1"),
        ("expandable_page_mb:3", 20, "3", Some("expandable_page_mb"), "even"),
        ("expandable_segments_reserve:8M", 29, "8M", Some("expandable_segments_reserve"), "GiB"),
        ("expandable_segments_reserve:0G", 29, "0G", Some("expandable_segments_reserve"), "more than 0"),
        ("roundup_power2_divisions:6", 26, "6", divisions, "power of two"),
        ("roundup_power2_divisions:[64:8,100:4]", 32, "100", divisions, "before each `:`"),
        ("roundup_power2_divisions:[64:3]", 30, "3", divisions, "number of divisions"),
        ("roundup_power2_divisions:[64:8 128:8]", 32, "128", divisions, "`,` or `]`"),
        ("roundup_power2_divisions:[[64:8]]", 27, "[", divisions, "`name:value`"),
        ("expandable_segments_reserve_by_class:[a:0.5", 44, "", classes, "`,` or `]`"),
        ("expandable_segments_reserve_by_class:[a:-1]", 41, "-1", classes, "more than 0"),
    ];
    for (text, column, found, key, expected) in refusals {
        let error = refused(text);
        assert_eq!((error.column(), error.found(), error.key()), (Some(column), found, key), "{error}");
        assert_eq!(&text[error.byte_range().expect("a text")], found, "{error}");
        assert!(error.expected().contains(expected), "{error}");
        assert_eq!(error.text(), Some(text));
    }
}

#[test]
fn columns_count_characters_and_the_carets_stay_below_them() {
    let error = refused("expandable_segments_reserve_by_class:[größe→:1G],\tstitching:\u{1F980}\0");
    assert_eq!(error.column(), Some(61));
    assert_eq!(
        error.to_string(),
        "column 61: `\u{1F980}\\0` is invalid for stitching: expected `True` or `False`
… reserve_by_class:[gr··e·:1G], stitching:··
                                          ^^"
    );
}

#[test]
fn methods_refuse_what_the_text_does() {
    let error = Settings::default().with_max_split_size_bytes(20 * MIB + 1).expect_err("not whole");
    assert_eq!(
        error.to_string(),
        "`20971521 bytes` is invalid for max_split_size_mb: expected a whole number of MiB, at least \
         `large_segment_size_mb`"
    );
    assert_eq!((error.text(), error.byte_range(), error.column()), (None, None, None));
    assert!(Settings::default().with_garbage_collection_threshold(f64::NAN).is_err());
    assert!(Settings::default().with_expandable_segments_reserve(Reserve::Fraction(f64::INFINITY)).is_err());
    let error = Settings::default().without("stiching").expect_err("misspelt");
    assert_eq!((error.is_unknown_key(), error.suggestion()), (true, Some("stitching")));
}

#[test]
fn what_has_no_effect_is_a_warning() {
    assert_eq!(Settings::default().warnings(), Vec::<String>::new());
    let settings =
        parse("garbage_collection_threshold:0.8,pinned_max_round_threshold_mb:9,pinned_max_cached_size_mb:8");
    let warnings = settings.warnings();
    assert!(warnings[0].contains("memory fraction"), "{warnings:?}");
    assert!(warnings[1].contains("pinned_max_round_threshold_mb:9"), "{warnings:?}");
    assert_eq!(warnings.len(), 2);
    let limited = settings.apply("per_process_memory_fraction:0.9").expect("valid");
    assert_eq!(limited.warnings().len(), 1);
}

#[test]
fn keys_are_listed_for_people() {
    let settings = parse("max_split_size_mb:64,policy:pytorch");
    let key = |wanted: &str| settings.keys().find(|key| key.name == wanted).expect("a key");
    assert_eq!((key("max_split_size_mb").value.as_str(), key("max_split_size_mb").is_set), ("64", true));
    assert_eq!((key("stitching").value.as_str(), key("stitching").is_set), ("False", false));
    assert_eq!(key("garbage_collection_threshold").value, "off");
    assert!(settings.keys().all(|key| !key.meaning.is_empty() && !key.accepts.is_empty()));
}

#[test]
fn a_snapshot_names_settings_as_pytorch_does() {
    let settings = parse("policy:pytorch,roundup_power2_divisions:[1:2,>:4]");
    let mut entries = settings.allocator_settings();
    let Some((_, SnapshotValue::Table(divisions))) = entries.pop() else { panic!("the divisions come last") };
    assert_eq!((&divisions[0], &divisions[15]), (&("1".to_owned(), 2), &("32768".to_owned(), 4)));
    let text = "policy:pytorch,roundup_power2_divisions:[1:2,>:4]".to_owned();
    assert_eq!(
        entries,
        [
            ("PYTORCH_CUDA_ALLOC_CONF", SnapshotValue::Text(text)),
            ("max_split_size", SnapshotValue::Integer(-1)),
            ("garbage_collection_threshold", SnapshotValue::Number(0.0)),
            ("expandable_segments", SnapshotValue::Boolean(false)),
            ("pinned_num_register_threads", SnapshotValue::Integer(1)),
            ("release_lock_on_cudamalloc", SnapshotValue::Boolean(false)),
            ("pinned_use_cuda_host_register", SnapshotValue::Boolean(false)),
            ("graph_capture_record_stream_reuse", SnapshotValue::Boolean(false)),
            ("max_round_threshold", SnapshotValue::Integer(-1)),
            ("max_cached_size", SnapshotValue::Integer(-1)),
        ]
    );
}

/// Asserts that a text is refused with an error that can be shown, or results in settings that survive being written.
fn survives(text: &str) -> Result<(), TestCaseError> {
    match Settings::parse(text) {
        Ok(settings) => {
            let written = settings.to_string();
            prop_assert_eq!(Settings::parse(&written), Ok(settings), "{} from {:?}", written, text);
        }
        Err(error) => {
            let range = error.byte_range().expect("it came from a text");
            prop_assert!(text.get(range).is_some(), "a range of whole characters");
            let lines: Vec<String> = error.to_string().lines().map(str::to_owned).collect();
            prop_assert_eq!(lines.len(), 3, "a sentence, the text, the carets: {}", error);
            let widths = lines[1..].iter().map(|line| line.chars().count());
            prop_assert!(widths.max() <= Some(78), "it fits a terminal: {}", error);
        }
    }
    Ok(())
}

#[test]
fn long_hostile_texts_are_refused_at_once() {
    let names: String = (0..80_000).map(|number| format!("c{number}:1G,")).collect();
    let long = [
        "[".repeat(1 << 20),
        "a".repeat(1 << 20),
        "é".repeat(1 << 19),
        "\0".repeat(1 << 20),
        " ".repeat(1 << 20) + "x",
        format!("max_split_size_mb:{}", "9".repeat(1 << 20)),
        format!("garbage_collection_threshold:0.{}", "9".repeat(1 << 20)),
        format!("expandable_segments_reserve_by_class:{}", "[a:1G".repeat(1 << 17)),
        format!("{}stitching", "stitching:True,".repeat(1 << 16)),
        format!("expandable_segments_reserve_by_class:[{names}],x"),
        format!("roundup_power2_divisions:[{}", "64:8,".repeat(1 << 17)),
    ];
    for text in long {
        assert!(Settings::parse(&text).is_err());
        survives(&text).expect("an error that can be shown");
    }
    assert_eq!(parse(&"stitching:True,".repeat(1 << 16)), Settings::default().with_stitching(true));
}

/// Pieces that combine into nearly valid texts.
fn piece() -> impl Strategy<Value = String> {
    let names: Vec<String> = Settings::default().keys().map(|key| key.name.to_owned()).collect();
    let values = [
        "True",
        "False",
        "default",
        "0",
        "1",
        "2",
        "8",
        "11",
        "64",
        "128",
        "0.5",
        "1e-3",
        "8G",
        "-1",
        ">",
        "thalweg",
        "pytorch",
        "native",
        "cudaMallocAsync",
        "never",
        "idle",
        "ordered",
        "[64:8,>:2]",
        "[a:1G]",
        "[]",
    ];
    prop_oneof![
        4 => proptest::sample::select(names),
        4 => proptest::sample::select(values.map(str::to_owned).to_vec()),
        6 => proptest::sample::select([",", ":", "[", "]", " "].map(str::to_owned).to_vec()),
        1 => any::<String>(),
        1 => any::<u64>().prop_map(|number| number.to_string()),
        1 => any::<f64>().prop_map(|number| number.to_string()),
    ]
}

/// Returns one key with a value that it accepts.
fn entry() -> impl Strategy<Value = String> {
    let power = || (0..64u32).prop_map(|exponent| 1u64 << exponent);
    let interval = (0..16u32, proptest::option::of(power()));
    let pair = |(exponent, divisions): (u32, Option<u64>)| {
        format!("{}:{}", 1u64 << exponent, divisions.unwrap_or(0))
    };
    let list = proptest::collection::vec(interval.prop_map(pair), 0..5);
    let fraction = || (1..u32::MAX).prop_map(|part| f64::from(part) / f64::from(u32::MAX));
    prop_oneof![
        (60..=u64::MAX / MIB).prop_map(|size| format!("max_split_size_mb:{size}")),
        (60..=u64::MAX / MIB).prop_map(|size| format!("max_non_split_rounding_mb:{size}")),
        (11..60u64).prop_map(|size| format!("large_segment_size_mb:{size}")),
        (0..=u64::MAX / MIB).prop_map(|size| format!("pinned_max_cached_size_mb:{size}")),
        any::<u64>().prop_map(|waits| format!("cross_stream_wait_limit:{waits}")),
        any::<bool>().prop_map(|on| format!("stitching:{}", if on { "True" } else { "False" })),
        fraction().prop_map(|fraction| format!("garbage_collection_threshold:{fraction}")),
        fraction().prop_map(|fraction| format!("per_process_memory_fraction:{fraction:e}")),
        power().prop_map(|divisions| format!("roundup_power2_divisions:{divisions}")),
        list.prop_map(|pairs| format!("roundup_power2_divisions:[{}]", pairs.join(","))),
        (1..u64::MAX).prop_map(|count| format!("expandable_segments_reserve:{count}G")),
        proptest::collection::btree_map("[^\\s,:\\[\\]]{1,4}", fraction(), 0..4).prop_map(|classes| {
            let pairs: Vec<String> = classes.iter().map(|(name, value)| format!("{name}:{value}")).collect();
            format!("expandable_segments_reserve_by_class:[{}]", pairs.join(" , "))
        }),
        proptest::sample::select(vec!["policy:pytorch", "policy:thalweg", "cross_stream_reuse:idle"])
            .prop_map(str::to_owned),
    ]
}

proptest! {
    #[test]
    fn no_text_makes_trouble(text in any::<String>()) {
        survives(&text)?;
    }

    #[test]
    fn no_nearly_right_text_makes_trouble(pieces in proptest::collection::vec(piece(), 0..24)) {
        survives(&pieces.concat())?;
    }

    #[test]
    fn settings_survive_being_written(entries in proptest::collection::vec(entry(), 0..12)) {
        let text = entries.join(",");
        let settings = Settings::parse(&text);
        prop_assert!(settings.is_ok(), "{}", settings.unwrap_err());
        survives(&text)?;
        // Applying the entries one after another has the same result: no entry resets an earlier one.
        let apart = entries.iter().try_fold(Settings::default(), |settings, entry| settings.apply(entry));
        prop_assert_eq!(apart, settings);
    }

    #[test]
    fn divisions_survive_being_written(exponents in proptest::array::uniform16(proptest::option::of(0..3u32))) {
        let intervals = exponents.map(|exponent| exponent.map_or(0, |exponent| 1 << exponent));
        let divisions = PowerTwoDivisions::from_intervals(intervals).expect("powers of two");
        let settings = Settings::default().with_roundup_power2_divisions(divisions);
        prop_assert_eq!(Settings::parse(&settings.to_string()), Ok(settings));
    }

    /// The result is the smallest step between two powers of two that holds the request, found by trying all of them.
    #[test]
    fn rounding_takes_the_next_step(exponent in 0..10u32, requested in 1..64 * GIB) {
        let divisions = 1u64 << exponent;
        let rounded = PowerTwoDivisions::uniform(divisions).expect("a power of two").round_size(requested);
        let below = 1u64 << requested.ilog2();
        let steps = if divisions > 1 && requested > 512 * divisions {
            (0..=divisions).map(|step| below + step * (below / divisions)).find(|step| *step >= requested)
        } else {
            Some(requested.div_ceil(512) * 512)
        };
        prop_assert_eq!(Some(rounded), steps);
        prop_assert_eq!(rounded % 512, 0);
    }
}
