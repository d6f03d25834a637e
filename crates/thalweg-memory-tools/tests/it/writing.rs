//! The written file, checked without a browser.

use thalweg_memory_tools::report::{BlockLife, DevicePage, PageModel, write};

use crate::synthetic;

fn page(model: &PageModel) -> String {
    let mut out = Vec::new();
    write(model, &mut out).expect("a vector takes it");
    String::from_utf8(out).expect("a page is UTF-8")
}

#[test]
fn a_page_needs_nothing_but_itself() {
    let page = page(&synthetic::model(vec![synthetic::device("GPU 0", 2_000, 3)]));
    for forbidden in ["http:", "https:", "src=", "@import", "url(", "fetch(", "XMLHttpRequest", "import("] {
        assert!(!page.contains(forbidden), "the page has {forbidden}");
    }
    assert!(page.contains("default-src 'none'"));
    assert!(!page.contains("{{") && !page.contains("}}</"), "a place of the template was left");
}

#[test]
fn texts_of_strangers_stay_texts() {
    let page = page(&synthetic::model(vec![synthetic::device("</script><script>", 500, 3)]));
    // meta, stacks, one device, and the scripts.
    assert_eq!(page.matches("<script").count(), 4);
    assert_eq!(page.matches("</script>").count(), 4);
    assert_eq!(page.matches("</title>").count(), 1);
}

#[test]
fn a_million_events_stay_below_25_megabytes() {
    // The file has a twentieth of the events, with the same bytes per event or more: stacks and scripts weigh more here.
    let page = page(&synthetic::model(vec![synthetic::device("GPU 0", 50_000, 3)]));
    assert!(page.len() < 25_000_000 / 20, "{} bytes", page.len());
}

#[test]
fn a_snapshot_without_anything_is_a_page_too() {
    assert!(page(&PageModel::default()).contains("<main>"));
    let model = PageModel { devices: vec![DevicePage::default()], ..PageModel::default() };
    assert!(page(&model).contains("id=\"device-0\""));
}

#[test]
#[should_panic(expected = "ends before it begins")]
fn models_that_contradict_themselves_are_refused() {
    let block = BlockLife { allocated: Some(3), freed: Some(2), ..BlockLife::default() };
    let device = DevicePage {
        event_count: 9,
        streams: vec!["s".into()],
        pools: vec!["p".into()],
        blocks: vec![block],
        ..DevicePage::default()
    };
    page(&PageModel { devices: vec![device], categories: vec!["c".into()], ..PageModel::default() });
}
