//! The sizes of the arguments of functions, of which the tables of entry points are compared with generated bindings.

/// The sizes of a function's arguments.
pub(in crate::cuda) trait ArgumentSizes {
    /// Returns the sizes, in the order of the arguments.
    fn sizes(self) -> Vec<usize>;
}

macro_rules! arguments {
    ($($argument:ident)*) => {
        impl<Answer, $($argument),*> ArgumentSizes for unsafe fn($($argument),*) -> Answer {
            fn sizes(self) -> Vec<usize> {
                vec![$(size_of::<$argument>()),*]
            }
        }
    };
}

arguments!();
arguments!(A);
arguments!(A B);
arguments!(A B C);
arguments!(A B C D);
arguments!(A B C D E);
arguments!(A B C D E F);
arguments!(A B C D E F G);
arguments!(A B C D E F G H);
arguments!(A B C D E F G H I);
arguments!(A B C D E F G H I J);
arguments!(A B C D E F G H I J K);
arguments!(A B C D E F G H I J K L);
arguments!(A B C D E F G H I J K L M);
arguments!(A B C D E F G H I J K L M N);
arguments!(A B C D E F G H I J K L M N O);
arguments!(A B C D E F G H I J K L M N O P);
arguments!(A B C D E F G H I J K L M N O P Q);
arguments!(A B C D E F G H I J K L M N O P Q R S T);
arguments!(A B C D E F G H I J K L M N O P Q R S T U V);
