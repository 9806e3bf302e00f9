//! Shell text as commands, with the line of every word. It follows quotes, continued lines and here-documents, and no logic.

/// A word, quotes removed, `$` kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) text: String,
    /// Counted from 1.
    pub(crate) line: usize,
}

impl Word {
    /// Whether it is Python or a program for it.
    pub(crate) fn python(&self) -> bool {
        let path = std::path::Path::new(&self.text);
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("python") || path.extension().is_some_and(|end| end == "py")
    }
}

/// An assignment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Set {
    pub(crate) name: String,
    pub(crate) value: String,
    pub(crate) line: usize,
}

/// A simple command.
#[derive(Clone, Debug, Default)]
pub(crate) struct Command {
    /// Assignments in front of it (`A=1 cmd`), or all it has.
    pub(crate) sets: Vec<Set>,
    /// The program and its arguments.
    pub(crate) words: Vec<Word>,
    /// Index of the command that starts this one (`srun bash -c '...'`), in the list where both are.
    pub(crate) outer: Option<usize>,
}

/// A script.
#[derive(Clone, Debug, Default)]
pub(crate) struct Script {
    pub(crate) commands: Vec<Command>,
    /// Texts of here-documents, with the line of the first.
    pub(crate) heredocs: Vec<Word>,
}

impl Command {
    /// The program without its folder.
    pub(crate) fn program(&self) -> &str {
        self.words.first().map_or("", |word| word.text.rsplit('/').next().unwrap_or_default())
    }

    /// Line of the program.
    pub(crate) fn line(&self) -> usize {
        let set = self.sets.first().map(|set| set.line);
        self.words.first().map(|word| word.line).or(set).unwrap_or(1)
    }

    /// The value of the first of `names` (`--nnodes=2`, `--nnodes 2`; `_` and `-` are the same) and its line.
    pub(crate) fn option(&self, names: &[&str]) -> Option<Word> {
        let plain = |text: &str| text.replace('_', "-");
        self.words.iter().enumerate().skip(1).find_map(|(index, word)| {
            let (key, value) = match word.text.split_once('=') {
                Some((key, value)) => (key, Some(value)),
                None => (word.text.as_str(), None),
            };
            if !names.iter().any(|name| plain(name) == plain(key)) {
                return None;
            }
            match value {
                Some(value) => Some(Word { text: value.to_owned(), line: word.line }),
                None => self.words.get(index + 1).cloned(),
            }
        })
    }

    /// Whether `name` is among the arguments, with a value or without.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.words.iter().skip(1).any(|word| {
            word.text == name || word.text.strip_prefix(name).is_some_and(|rest| rest.starts_with('='))
        })
    }
}

/// Nesting of `bash -c '...'`.
const DEEPEST: usize = 3;

/// The commands of `text`, whose first line has number `line`.
pub(crate) fn parse(text: &str, line: usize) -> Script {
    let mut script = Script::default();
    nested(&mut script, text, line, (None, 0));
    script
}

fn nested(script: &mut Script, text: &str, line: usize, (outer, depth): (Option<usize>, usize)) {
    let mut lexer = Lexer {
        text: text.chars().collect(),
        at: 0,
        line,
        word: None,
        words: Vec::new(),
        commands: Vec::new(),
        pending: Vec::new(),
        heredocs: Vec::new(),
    };
    lexer.run();
    script.heredocs.append(&mut lexer.heredocs);
    for words in lexer.commands {
        let command = command(words, outer);
        let inner = inner(&command);
        script.commands.push(command);
        let index = script.commands.len() - 1;
        if let Some(word) = inner.filter(|_| depth < DEEPEST) {
            nested(script, &word.text, word.line, (Some(index), depth + 1));
        }
    }
}

/// The text of `bash -c TEXT` in a command.
fn inner(command: &Command) -> Option<Word> {
    let shell = |word: &Word| matches!(word.text.rsplit('/').next(), Some("bash" | "sh" | "dash" | "zsh"));
    let at = command.words.iter().position(shell)?;
    let flag =
        |word: &Word| word.text.starts_with('-') && !word.text.starts_with("--") && word.text.ends_with('c');
    let offset = command.words.get(at + 1..)?.iter().take(4).position(flag)?;
    command.words.get(at + offset + 2).cloned()
}

/// A command of its words: words of the language dropped, assignments apart.
pub(crate) fn command(words: Vec<Word>, outer: Option<usize>) -> Command {
    const LANGUAGE: &[&str] =
        &["if", "then", "else", "elif", "do", "while", "until", "!", "{", "exec", "time", "nohup", "sudo"];
    let mut command = Command { outer, ..Command::default() };
    for word in words {
        if command.words.is_empty() {
            if LANGUAGE.contains(&word.text.as_str()) {
                continue;
            }
            if let Some((name, value)) = assignment(&word.text) {
                command.sets.push(Set { name, value, line: word.line });
                continue;
            }
            // `env A=1 program` is `A=1 program`.
            if word.text == "env" || word.text.ends_with("/env") {
                continue;
            }
        }
        command.words.push(word);
    }
    command
}

/// The parts of `NAME=value`.
pub(crate) fn assignment(text: &str) -> Option<(String, String)> {
    let (name, value) = text.split_once('=')?;
    let mut letters = name.chars();
    let first = letters.next()?;
    let good = (first.is_ascii_alphabetic() || first == '_')
        && letters.all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
    good.then(|| (name.to_owned(), value.to_owned()))
}

struct Lexer {
    text: Vec<char>,
    at: usize,
    line: usize,
    word: Option<Word>,
    words: Vec<Word>,
    commands: Vec<Vec<Word>>,
    /// Ends of here-documents that begin on the next line, and whether tabs before the end are dropped.
    pending: Vec<(String, bool)>,
    heredocs: Vec<Word>,
}

impl Lexer {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.text.get(self.at + ahead).copied()
    }

    fn next(&mut self) -> Option<char> {
        let letter = self.peek(0)?;
        self.at += 1;
        if letter == '\n' {
            self.line += 1;
        }
        Some(letter)
    }

    fn push(&mut self, letter: char) {
        let line = self.line;
        self.word.get_or_insert_with(|| Word { text: String::new(), line }).text.push(letter);
    }

    fn end_word(&mut self) {
        self.words.extend(self.word.take());
    }

    fn end_command(&mut self) {
        self.end_word();
        if !self.words.is_empty() {
            self.commands.push(std::mem::take(&mut self.words));
        }
    }

    fn run(&mut self) {
        while let Some(letter) = self.peek(0) {
            match letter {
                ' ' | '\t' | '\r' => {
                    self.end_word();
                    self.next();
                }
                '\n' => {
                    self.end_command();
                    self.next();
                    self.bodies();
                }
                '#' if self.word.is_none() => {
                    while self.peek(0).is_some_and(|letter| letter != '\n') {
                        self.next();
                    }
                }
                '\\' => {
                    self.next();
                    match self.next() {
                        Some('\n') | None => {}
                        Some(letter) => self.push(letter),
                    }
                }
                '\'' | '"' => self.quoted(letter),
                '`' => self.raw('`'),
                '$' if self.peek(1) == Some('(') => {
                    self.next();
                    self.push('$');
                    self.parens();
                }
                '$' if self.peek(1) == Some('{') => self.raw('}'),
                '<' if self.peek(1) == Some('<') && self.peek(2) != Some('<') => self.heredoc(),
                '&' if self.peek(1) == Some('>') || self.word.as_ref().is_some_and(redirects) => {
                    self.next();
                    self.push('&');
                }
                ';' | '|' | '&' | '(' | ')' => {
                    self.end_command();
                    self.next();
                }
                _ => {
                    // The line of a word is where it begins, so the letter is taken after it was noted.
                    self.push(letter);
                    self.next();
                }
            }
        }
        self.end_command();
    }

    /// A quoted part of a word.
    fn quoted(&mut self, quote: char) {
        let line = self.line;
        self.next();
        self.word.get_or_insert_with(|| Word { text: String::new(), line });
        while let Some(letter) = self.peek(0) {
            match letter {
                _ if letter == quote => {
                    self.next();
                    return;
                }
                '\\' if quote == '"' => {
                    self.next();
                    match self.next() {
                        // Kept: a shell that gets the text drops it, and lines stay countable.
                        Some('\n') => {
                            self.push('\\');
                            self.push('\n');
                        }
                        Some(letter) => self.push(letter),
                        None => {}
                    }
                }
                '$' if quote == '"' && self.peek(1) == Some('(') => {
                    self.next();
                    self.push('$');
                    self.parens();
                }
                _ => {
                    self.next();
                    self.push(letter);
                }
            }
        }
    }

    /// Up to and with `end`, as it is.
    fn raw(&mut self, end: char) {
        let mut first = true;
        while let Some(letter) = self.next() {
            self.push(letter);
            if letter == end && !first {
                return;
            }
            first = false;
        }
    }

    /// A part in parentheses, as it is.
    fn parens(&mut self) {
        let mut open = 0usize;
        while let Some(letter) = self.next() {
            self.push(letter);
            match letter {
                '(' => open += 1,
                ')' => {
                    open = open.saturating_sub(1);
                    if open == 0 {
                        return;
                    }
                }
                _ => {}
            }
        }
    }

    /// `<<END`, `<<-'END'`: noted; the text follows on the next line.
    fn heredoc(&mut self) {
        self.end_word();
        self.at += 2;
        let tabs = self.peek(0) == Some('-');
        if tabs {
            self.at += 1;
        }
        while matches!(self.peek(0), Some(' ' | '\t')) {
            self.at += 1;
        }
        let mut end = String::new();
        while let Some(letter) = self.peek(0) {
            if letter.is_whitespace() || matches!(letter, ';' | '|' | '&' | ')' | '>') {
                break;
            }
            if !matches!(letter, '\'' | '"' | '\\') {
                end.push(letter);
            }
            self.at += 1;
        }
        if !end.is_empty() {
            self.pending.push((end, tabs));
        }
    }

    /// The texts of the here-documents that were noted on the line before.
    fn bodies(&mut self) {
        for (end, tabs) in std::mem::take(&mut self.pending) {
            let mut body = Word { text: String::new(), line: self.line };
            while self.at < self.text.len() {
                let mut line = String::new();
                while let Some(letter) = self.next() {
                    if letter == '\n' {
                        break;
                    }
                    line.push(letter);
                }
                let bare = if tabs { line.trim_start_matches('\t') } else { &line };
                if bare.trim_end_matches('\r') == end {
                    break;
                }
                body.text.push_str(&line);
                body.text.push('\n');
            }
            self.heredocs.push(body);
        }
    }
}

/// Whether a word is the beginning of a redirection (`2>`), whose `&` is part of it.
fn redirects(word: &Word) -> bool {
    word.text.ends_with('>') || word.text.ends_with('<')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(command: &Command) -> Vec<(&str, usize)> {
        command.words.iter().map(|word| (word.text.as_str(), word.line)).collect()
    }

    #[test]
    fn continued_lines_keep_the_line_of_each_word() {
        let script = parse("set -eu\ntorchrun \\\n  --nnodes=2 \\\n  --nproc-per-node 8 \\\n  a.py\n", 10);
        let run = script.commands.get(1).unwrap();
        assert_eq!(words(run).first(), Some(&("torchrun", 11)));
        assert_eq!(run.option(&["--nnodes"]), Some(Word { text: "2".to_owned(), line: 12 }));
        assert_eq!(run.option(&["--nproc_per_node"]), Some(Word { text: "8".to_owned(), line: 13 }));
        assert!(run.has("a.py") && !run.has("--nnode"));
    }

    #[test]
    fn quotes_comments_and_here_documents() {
        let text = "A=\"x y\" prog 'b # c' # gone\ncat > f <<'E' && echo done\nexport NOT=1\nE\necho $(a; b) 2>&1 ${c:-d e}\n";
        let script = parse(text, 1);
        let all: Vec<Vec<(&str, usize)>> = script.commands.iter().map(words).collect();
        assert_eq!(all.first().unwrap(), &[("prog", 1), ("b # c", 1)]);
        assert_eq!(script.commands.first().unwrap().sets.first().unwrap().value, "x y");
        assert_eq!(all.get(2).unwrap(), &[("echo", 2), ("done", 2)]);
        assert_eq!(all.get(3).unwrap(), &[("echo", 5), ("$(a; b)", 5), ("2>&1", 5), ("${c:-d e}", 5)]);
        assert_eq!(script.heredocs, [Word { text: "export NOT=1\n".to_owned(), line: 3 }]);
    }

    #[test]
    fn commands_inside_commands() {
        let script = parse("srun -N 2 bash -c '\n  RANK=$SLURM_PROCID python3 t.py'\n", 1);
        let inner = script.commands.get(1).unwrap();
        assert_eq!((inner.outer, inner.program(), inner.line()), (Some(0), "python3", 2));
        assert_eq!(inner.sets.first().unwrap().value, "$SLURM_PROCID");
    }

    #[test]
    fn text_that_ends_in_the_middle() {
        for text in ["'a", "\"a $(b", "`x", "${x", "a <<E\nb", "a \\", "$(((("] {
            let _ = parse(text, 1);
        }
        let deep = parse(&"bash -c \"".repeat(2000), 1);
        assert!(deep.commands.len() < 10, "{}", deep.commands.len());
    }
}
