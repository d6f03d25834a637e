//! [`options!`](crate::options): structures whose fields state their defaults.

/// Defines a structure that implements `Default`: each field has its default after `=`.
///
/// ```
/// thalweg_runtime::options! {
///     /// The options of a step.
///     #[derive(Clone, Debug)]
///     pub struct StepOptions {
///         /// The learning rate.
///         pub lr: f64 = 1e-3,
///     }
/// }
/// assert_eq!(StepOptions::default().lr, 1e-3);
/// ```
#[macro_export]
macro_rules! options {
    (
        $(#[$attribute:meta])*
        $visibility:vis struct $name:ident $(<const $parameter:ident: usize>)? {
            $($(#[$of_field:meta])* $of:vis $field:ident: $type:ty = $default:expr,)*
        }
    ) => {
        $(#[$attribute])*
        $visibility struct $name $(<const $parameter: usize>)? {
            $($(#[$of_field])* $of $field: $type,)*
        }

        impl $(<const $parameter: usize>)? Default for $name $(<$parameter>)? {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }
    };
}
