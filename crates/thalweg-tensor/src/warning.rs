//! Warnings: messages to the user of a program about effects of a call that are rarely intended.

/// A function that receives warnings.
use thalweg_lock::RwLock;

type Handler = Box<dyn Fn(&str) + Send + Sync>;

static HANDLER: RwLock<Option<Handler>> = RwLock::new(None);

/// Sets the function that receives each warning, on the thread that warns. Without one, warnings are written to the standard
/// error.
pub fn set_warning_handler(handler: impl Fn(&str) + Send + Sync + 'static) {
    *HANDLER.write() = Some(Box::new(handler));
}

/// Warns (`torch.UserWarning`).
pub fn warn(text: &str) {
    match &*HANDLER.read() {
        Some(handler) => handler(text),
        None => eprintln!("warning: {text}"),
    }
}
