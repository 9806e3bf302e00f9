//! Containerfiles, each with a script that builds it.
//!
//! The templates lie in `assets/images`, in our own words; what they fix and why stands in them as comments. Nothing here builds an image.

mod kind;
mod readme;

use thiserror::Error;

use crate::engine::{DEEPEP_FILE, DEEPEP_TEXT};
use crate::files::FileSet;

pub use kind::Kind;

/// What an image is rendered from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Which of them.
    pub kind: Kind,
    /// Architectures of GPUs as `TORCH_CUDA_ARCH_LIST` has them (`9.0`, `10.0`, `10.3`); none: the kind's own. Not for
    /// [`Kind::Expertrail`], whose binary holds the kernels of all.
    pub architectures: Vec<String>,
    /// Name and tag; `None`: the kind's own.
    pub tag: Option<String>,
}

/// Why an image was not rendered.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ImageError {
    /// No GPU that DeepEP runs on.
    #[error(
        "architecture `{0}` is none that DeepEP is built for: 9.0 is Hopper (H100, H200), 10.0 is B200, 10.3 is B300"
    )]
    Architecture(String),
    /// Several where one is wanted.
    #[error(
        "image {kind} is built for one GPU architecture, not for {given}: its kernels do not start on another, so render one image for each"
    )]
    OneArchitecture {
        /// The image.
        kind: Kind,
        /// What was asked for.
        given: String,
    },
    /// An image without kernels of an architecture.
    #[error("image expertrail takes no architecture: its binary holds the kernels of all of them")]
    NoArchitecture,
    /// A tag that a shell or a registry would take for something else.
    #[error(
        "`{0}` is no image name: letters, digits and `._-/:@` are allowed, such as registry.example/deepep:h200"
    )]
    Tag(String),
}

impl Image {
    /// The image with its usual architectures and tag.
    pub fn new(kind: Kind) -> Self {
        Self { kind, architectures: Vec::new(), tag: None }
    }
}

/// The files of an image's folder: `README.txt`, `Containerfile`, `build.sh` and what the Containerfile copies, but for the binary, which
/// `build.sh` brings.
///
/// # Errors
/// When the architectures do not fit the image, or the tag is none.
pub fn render(image: &Image) -> Result<FileSet, ImageError> {
    let architectures = architectures(image)?;
    let tag = image.tag.clone().unwrap_or_else(|| image.kind.tag(&architectures));
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-/:@".contains(c);
    if tag.is_empty() || tag.starts_with(['-', '.', '/', ':']) || !tag.chars().all(allowed) {
        return Err(ImageError::Tag(tag));
    }
    let fill = |template: &str| {
        template
            .replace("@ABOUT@", readme::about(image.kind))
            .replace("@NEEDS@", readme::needs(image.kind))
            .replace("@SETTINGS@", readme::settings(image.kind))
            .replace("@SETUP@", &readme::setup(image.kind))
            .replace("@BUILD_ARGS@", readme::build_arguments(image.kind))
            .replace("@CHECKED@", readme::checked(image.kind))
            .replace("@NOT_RUN@", readme::not_run(image.kind))
            .replace("@SETUP_COMMIT@", kind::SETUP_COMMIT)
            .replace("@KIND@", image.kind.name())
            .replace("@TAG@", &tag)
            .replace("@ARCH@", &architectures.join(";"))
            .replace("@GENCODE@", &gencode(&architectures))
            .replace("@CHECKS@", image.kind.checks())
            .replace("@ARGS@", image.kind.arguments())
    };
    let mut files = FileSet::default();
    files.text("README.txt", fill(include_str!("../../../assets/images/README.txt")));
    files.text("Containerfile", fill(image.kind.template()));
    files.program("build.sh", fill(include_str!("../../../assets/images/build.sh")));
    if image.kind != Kind::Expertrail {
        files.program(DEEPEP_FILE, DEEPEP_TEXT);
    }
    Ok(files)
}

fn architectures(image: &Image) -> Result<Vec<String>, ImageError> {
    const KNOWN: [&str; 3] = ["9.0", "10.0", "10.3"];
    let given = &image.architectures;
    if let Some(unknown) = given.iter().find(|given| !KNOWN.contains(&given.as_str())) {
        return Err(ImageError::Architecture(unknown.clone()));
    }
    match image.kind {
        Kind::Expertrail if !given.is_empty() => Err(ImageError::NoArchitecture),
        Kind::DeepepInfiniband | Kind::Deepep564 if given.len() > 1 => {
            Err(ImageError::OneArchitecture { kind: image.kind, given: given.join(";") })
        }
        kind if given.is_empty() => Ok(kind.architectures().iter().map(|&one| one.to_owned()).collect()),
        _ => Ok(given.clone()),
    }
}

/// The compiler's flags for the same architectures: `-gencode=arch=compute_90,code=sm_90`.
fn gencode(architectures: &[String]) -> String {
    let flags: Vec<String> = architectures
        .iter()
        .map(|one| one.replace('.', ""))
        .map(|one| format!("-gencode=arch=compute_{one},code=sm_{one}"))
        .collect();
    flags.join(" ")
}
