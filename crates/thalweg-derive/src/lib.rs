//! `#[derive(Module)]` for structures of modules, parameters and buffers, and attributes of functions whose caller's line is named.
//!
//! A field without an attribute is a module within the module. Other fields are described by `#[module(…)]`:
//!
//! | attribute | field |
//! |---|---|
//! | `parameter` | `Tensor` or `Option<Tensor>` that is learnt |
//! | `buffer` | `Tensor` or `Option<Tensor>` that is saved and not learnt |
//! | `training` | `bool`: whether the module is in training mode |
//! | `flatten` | a module whose names are merged into those of this one |
//! | `skip` | anything else: sizes, options. Over a structure: all of its fields |
//! | `name = "…"` | the name in the state dictionary, if it differs from the field's |
//!
//! A field with a forgotten attribute does not compile, since a number or a tensor is not a module, so no parameter can be lost.
#![forbid(unsafe_code)]

use proc_macro::TokenStream;
use proc_macro2::{Span, TokenStream as Tokens, TokenTree};
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{
    Attribute, Data, DeriveInput, Error, Field, Fields, LitStr, Member, Result, parse_macro_input,
    parse_quote,
};

/// Implements `thalweg_nn::module::Module`.
#[proc_macro_derive(Module, attributes(module))]
pub fn module(input: TokenStream) -> TokenStream {
    derive(parse_macro_input!(input as DeriveInput), &quote!(::thalweg_nn::module))
}

/// Implements `thalweg::module::Module`, by the names of the facade.
#[proc_macro_derive(FacadeModule, attributes(module))]
pub fn facade_module(input: TokenStream) -> TokenStream {
    derive(parse_macro_input!(input as DeriveInput), &quote!(::thalweg::module))
}

/// Defines attributes of functions that run as closures of functions of `thalweg_tensor::caller` with the same name and arguments.
macro_rules! attributes {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[proc_macro_attribute]
        pub fn $name(arguments: TokenStream, function: TokenStream) -> TokenStream {
            let arguments = Tokens::from(arguments);
            let comma = (!arguments.is_empty()).then(|| quote!(,));
            with_body(function, |body| {
                let caller = quote!(::thalweg_tensor::caller);
                quote!({ #caller::$name(#arguments #comma ::core::panic::Location::caller(), || #body) })
            })
        }
    )*};
}

attributes! {
    /// Lets the errors of a function, and the commands that it queues, name the line of its caller.
    at_line
    /// Lets the errors of a function on tensors name it, its tensors and the line of its caller: `#[in_call("softmax", &[input])]`.
    in_call
    /// Lets the errors of a function without tensors name it and the line of its caller: `#[in_function("Linear::new")]`.
    in_function
}

/// Makes errors in a function name the line of the function's caller.
#[proc_macro_attribute]
pub fn enter(_: TokenStream, function: TokenStream) -> TokenStream {
    with_body(function, |body| {
        quote!({
            let _entered = ::thalweg_tensor::caller::enter(::core::panic::Location::caller());
            #body
        })
    })
}

/// Returns a function that tracks its caller, with another body.
fn with_body(function: TokenStream, change: impl Fn(Tokens) -> Tokens) -> TokenStream {
    let mut tokens: Vec<TokenTree> = Tokens::from(function).into_iter().collect();
    let body = tokens.pop().expect("an attribute is over something");
    let body = change(body.into());
    quote!(#[track_caller] #(#tokens)* #body).into()
}

fn derive(input: DeriveInput, path: &Tokens) -> TokenStream {
    expand(input, path).unwrap_or_else(Error::into_compile_error).into()
}

/// The role of a field in a module.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Child,
    Flattened,
    Parameter,
    Buffer,
    Training,
    Skipped,
}

/// A field with its name in the state dictionary.
struct Part {
    member: Member,
    name: String,
    kind: Kind,
    /// The span of the type, at which the compiler reports that it is not a module.
    span: Span,
}

impl Part {
    /// Describes a field, which has this kind if it does not state another.
    fn new(index: usize, field: &Field, of_all: Kind) -> Result<Self> {
        let member = match &field.ident {
            Some(ident) => Member::Named(ident.clone()),
            None => Member::from(index),
        };
        let mut name = match &member {
            Member::Named(ident) => ident.to_string().trim_start_matches("r#").to_owned(),
            Member::Unnamed(index) => index.index.to_string(),
        };
        let mut kind = Kind::Child;
        for attribute in &field.attrs {
            read(attribute, &mut kind, &mut name)?;
        }
        if kind == Kind::Child {
            kind = of_all;
        }
        Ok(Self { member, name, kind, span: field.ty.span() })
    }

    /// Returns the statement that visits the field, by reference or by mutable reference.
    fn visit(&self, path: &Tokens, is_mut: bool) -> Tokens {
        let Self { member, name, kind, span } = self;
        let (entry, visit, tensor) = match is_mut {
            false => (quote!(#path::Entry), quote!(visit), quote!(tensor)),
            true => (quote!(#path::EntryMut), quote!(visit_mut), quote!(tensor_mut)),
        };
        // The place of the field, in the scope of the attribute.
        let span = span.resolved_at(Span::call_site());
        let field = match is_mut {
            true => quote_spanned!(span=> &mut self.#member),
            false => quote_spanned!(span=> &self.#member),
        };
        let of_tensor = |kind: Tokens| {
            quote! {
                if let Some(tensor) = #path::TensorField::#tensor(#field) {
                    visitor(#name, #entry::#kind(tensor));
                }
            }
        };
        match kind {
            Kind::Child => quote!(visitor(#name, #entry::Child(#field));),
            Kind::Flattened => quote!(#path::Module::#visit(#field, visitor);),
            Kind::Parameter => of_tensor(quote!(Parameter)),
            Kind::Buffer => of_tensor(quote!(Buffer)),
            Kind::Training => quote!(visitor(#name, #entry::Training(#field));),
            Kind::Skipped => Tokens::new(),
        }
    }
}

/// Parses an attribute of a field, if it is one of this macro's.
fn read(attribute: &Attribute, kind: &mut Kind, name: &mut String) -> Result<()> {
    if !attribute.path().is_ident("module") {
        return Ok(());
    }
    attribute.parse_nested_meta(|meta| {
        if meta.path.is_ident("name") {
            *name = meta.value()?.parse::<LitStr>()?.value();
            return Ok(());
        }
        let kinds = [
            ("parameter", Kind::Parameter),
            ("buffer", Kind::Buffer),
            ("training", Kind::Training),
            ("flatten", Kind::Flattened),
            ("skip", Kind::Skipped),
        ];
        let found = kinds.into_iter().find(|(word, _)| meta.path.is_ident(word));
        let Some((_, found)) = found else {
            return Err(
                meta.error("expected `parameter`, `buffer`, `training`, `flatten`, `skip` or `name = \"…\"`")
            );
        };
        if *kind != Kind::Child {
            return Err(meta.error("a field is of one kind only"));
        }
        *kind = found;
        Ok(())
    })
}

fn expand(mut input: DeriveInput, path: &Tokens) -> Result<Tokens> {
    let Data::Struct(data) = &input.data else {
        return Err(Error::new(
            input.span(),
            "`Module` is derived for structures; implement it by hand for others",
        ));
    };
    let fields = match &data.fields {
        Fields::Named(fields) => fields.named.iter().collect(),
        Fields::Unnamed(fields) => fields.unnamed.iter().collect(),
        Fields::Unit => Vec::new(),
    };
    let mut of_all = Kind::Child;
    for attribute in &input.attrs {
        read(attribute, &mut of_all, &mut String::new())?;
    }
    if !matches!(of_all, Kind::Child | Kind::Skipped) {
        return Err(Error::new(input.span(), "over a structure, `#[module(…)]` takes `skip` only"));
    }
    let parts = fields
        .into_iter()
        .enumerate()
        .map(|(index, field)| Part::new(index, field, of_all))
        .collect::<Result<Vec<_>>>()?;
    let visits = parts.iter().map(|part| part.visit(path, false));
    let visits_mut = parts.iter().map(|part| part.visit(path, true));
    for parameter in input.generics.type_params_mut() {
        parameter.bounds.push(parse_quote!(#path::Module));
    }
    let name = &input.ident;
    let (generics, of, bounds) = input.generics.split_for_impl();
    Ok(quote! {
        impl #generics #path::Module for #name #of #bounds {
            #[allow(unused_variables)]
            fn visit<'module>(&'module self, visitor: &mut dyn FnMut(&str, #path::Entry<'module>)) {
                #(#visits)*
            }

            #[allow(unused_variables)]
            fn visit_mut<'module>(&'module mut self, visitor: &mut dyn FnMut(&str, #path::EntryMut<'module>)) {
                #(#visits_mut)*
            }
        }
    })
}
