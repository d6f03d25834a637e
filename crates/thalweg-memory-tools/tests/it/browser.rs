//! A browser without a window, for pages that test themselves.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The executable names of browsers that understand these options.
const NAMES: [&str; 5] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"];

/// The time after which a page that has not finished its self-test counts as hanging.
const PATIENCE: Duration = Duration::from_secs(180);

fn find() -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    let named = std::env::var_os("CHROME").map(PathBuf::from);
    named.or_else(|| {
        std::env::split_paths(&folders)
            .flat_map(|folder| NAMES.map(|name| folder.join(name)))
            .find(|program| program.is_file())
    })
}

/// Opens a page with `?selftest` and returns the text that it wrote into the element `self-test`. If there is no browser, prints
/// a note and returns `None`. `scratch` is an existing folder.
pub fn self_test(page: &Path, scratch: &Path) -> Option<String> {
    let Some(browser) = find() else {
        println!("skipped: no Chromium on this machine (looked for {NAMES:?}, and in the variable CHROME)");
        return None;
    };
    let dump = scratch.join("dump.html");
    let mut child = Command::new(&browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"])
        .args(["--window-size=1400,1000", "--dump-dom"])
        .arg(format!("--user-data-dir={}", scratch.join("browser").display()))
        .arg(format!("file://{}?selftest", page.display()))
        .stdin(Stdio::null())
        .stdout(File::create(&dump).expect("the scratch folder takes files"))
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("{} does not start: {error}", browser.display()));
    let began = Instant::now();
    while child.try_wait().expect("the browser is our child").is_none() {
        if began.elapsed() > PATIENCE {
            child.kill().expect("the browser is our child");
            panic!("{} did not show {} within {PATIENCE:?}", browser.display(), page.display());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let text = fs::read_to_string(&dump).expect("the browser writes UTF-8");
    let found =
        text.split_once("<pre id=\"self-test\" hidden=\"\">").and_then(|(_, rest)| rest.split_once("</pre>"));
    let (result, _) =
        found.unwrap_or_else(|| panic!("the browser's page has no self-test: {} bytes", text.len()));
    Some(result.replace("&lt;", "<").replace("&gt;", ">").replace("&nbsp;", "\u{a0}").replace("&amp;", "&"))
}
