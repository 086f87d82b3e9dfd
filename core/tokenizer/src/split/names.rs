//! The pre-tokenizers by the names that `tokenizer.ggml.pre` uses.

use super::Stage;
use super::rules::{CasedRule, Tail, WordRule};
use crate::unicode::Char;

/// What a value of `tokenizer.ggml.pre` stands for.
#[derive(Debug)]
pub(crate) struct PreTokenizer {
    pub(crate) stages: &'static [Stage],
    /// A word that is a token as a whole is taken without looking at merges.
    pub(crate) ignore_merges: bool,
    /// Add a BOS token if the file does not say.
    pub(crate) add_bos: bool,
    /// Pieces are plain UTF-8 with `▁` for a space and `<0xNN>` for bytes, not the byte-level alphabet.
    pub(crate) raw: bool,
}

const PLAIN: PreTokenizer = PreTokenizer { stages: &[], ignore_merges: false, add_bos: false, raw: false };

const LLAMA3: WordRule = WordRule { contractions: true, marks: false, digits: 3, tail: Tail::Newlines };
const O200K: CasedRule = CasedRule { contractions: true, marks: false, cased: true, digits: 3 };

static GPT2: &[Stage] = &[Stage::Gpt2];
static LLAMA_BPE: &[Stage] = &[Stage::Words(LLAMA3)];
static QWEN2: &[Stage] = &[Stage::Words(WordRule { digits: 1, ..LLAMA3 })];
static QWEN35: &[Stage] = &[Stage::Words(WordRule { digits: 1, marks: true, ..LLAMA3 })];
static DIGITS_GPT2: &[Stage] = &[Stage::Run(Char::is_number, 1), Stage::Gpt2];
static GPT4O: &[Stage] = &[Stage::Cased(O200K)];
static TEKKEN: &[Stage] = &[Stage::Cased(CasedRule { contractions: false, digits: 1, ..O200K })];
static DEFAULT: &[Stage] = &[
    Stage::Run(is_punctuation_or_maths, usize::MAX),
    Stage::Gpt2,
    Stage::Run(Char::is_number, usize::MAX),
    Stage::DigitTriples,
];
static FALCON: &[Stage] =
    &[Stage::Run(is_punctuation_or_maths_or_backtick, usize::MAX), Stage::Gpt2, Stage::DigitTriples];
static DEEPSEEK_LLM: &[Stage] = &[
    Stage::Run(Char::is_newline, 1),
    Stage::SpacedRun(is_bicameral),
    Stage::SpacedRun(is_deepseek_sign),
    Stage::TrailingSpace,
    Stage::Run(is_deepseek_cjk, usize::MAX),
    Stage::Run(Char::is_number, usize::MAX),
];
static DEEPSEEK_CODER: &[Stage] = &[
    Stage::Run(Char::is_newline, 1),
    Stage::SpacedRun(Char::is_letter),
    Stage::SpacedRun(Char::is_punctuation),
    Stage::Run(is_deepseek_cjk, usize::MAX),
    Stage::Run(Char::is_number, 1),
];
static DEEPSEEK_V3: &[Stage] =
    &[Stage::Run(Char::is_number, 3), Stage::Run(is_han_or_kana, usize::MAX), Stage::DeepSeekWords];
static PORO: &[Stage] = &[Stage::BlankRun(is_poro_word)];
static VIKING: &[Stage] = &[Stage::BlankRun(is_poro_word), Stage::Run(Char::is_number, 1)];
static SEED_CODER: &[Stage] = &[Stage::Words(WordRule { digits: 1, tail: Tail::None, ..LLAMA3 })];
static MINICPM5: &[Stage] =
    &[Stage::Run(Char::is_number, 3), Stage::Words(WordRule { digits: usize::MAX, ..LLAMA3 })];
static UFAKZEKA: &[Stage] = &[Stage::Words(WordRule { contractions: false, digits: 1, ..LLAMA3 })];
static LAGUNA: &[Stage] = &[Stage::Lines, Stage::Words(WordRule { digits: 1, ..LLAMA3 })];
static TINY_AYA: &[Stage] =
    &[Stage::DigitsFromRight, Stage::Cased(CasedRule { marks: true, cased: false, ..O200K })];
static GRANITE_EMBED: &[Stage] = &[Stage::Cased(CasedRule { marks: true, ..O200K })];
static LINES: &[Stage] = &[Stage::Lines];

/// Names and what they stand for. The first group's names are the ones that the models of the catalogue use.
static TABLE: &[(&[&str], PreTokenizer)] = &[
    (&["default"], PreTokenizer { stages: DEFAULT, ..PLAIN }),
    (
        &[
            "gpt-2",
            "phi-2",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "exaone4",
            "mpt",
            "olmo",
            "jais",
            "trillion",
        ],
        PreTokenizer { stages: GPT2, ..PLAIN },
    ),
    (
        &["granite-docling", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de"],
        PreTokenizer { stages: GPT2, ..PLAIN },
    ),
    (
        &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        PreTokenizer { stages: LLAMA_BPE, ignore_merges: true, add_bos: true, ..PLAIN },
    ),
    (&["dbrx", "smaug-bpe", "chatglm-bpe"], PreTokenizer { stages: LLAMA_BPE, ..PLAIN }),
    (&["glm4", "glm5"], PreTokenizer { stages: LLAMA_BPE, ignore_merges: true, ..PLAIN }),
    (
        &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"],
        PreTokenizer { stages: DIGITS_GPT2, ..PLAIN },
    ),
    (
        &[
            "qwen2",
            "deepseek-r1-qwen",
            "stablelm2",
            "hunyuan",
            "megrez",
            "grok-2",
            "solar-open",
            "kormo",
            "f2llmv2",
        ],
        PreTokenizer { stages: QWEN2, ..PLAIN },
    ),
    (&["bailingmoe", "bailingmoe2", "llada-moe"], PreTokenizer { stages: QWEN2, ..PLAIN }),
    (&["qwen35"], PreTokenizer { stages: QWEN35, ..PLAIN }),
    (&["tekken"], PreTokenizer { stages: TEKKEN, ignore_merges: true, add_bos: true, ..PLAIN }),
    (
        &["gpt-4o", "o200k", "llama4", "kanana2", "talkie", "minimax-m2"],
        PreTokenizer { stages: GPT4O, ..PLAIN },
    ),
    (&["deepseek-llm"], PreTokenizer { stages: DEEPSEEK_LLM, ..PLAIN }),
    (&["deepseek-coder"], PreTokenizer { stages: DEEPSEEK_CODER, ..PLAIN }),
    (&["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"], PreTokenizer { stages: DEEPSEEK_V3, ..PLAIN }),
    (&["falcon"], PreTokenizer { stages: FALCON, ..PLAIN }),
    (&["poro-chat", "bloom", "gpt3-finnish"], PreTokenizer { stages: PORO, ..PLAIN }),
    (&["viking"], PreTokenizer { stages: VIKING, ..PLAIN }),
    (&["seed-coder"], PreTokenizer { stages: SEED_CODER, ..PLAIN }),
    (&["minicpm5"], PreTokenizer { stages: MINICPM5, ignore_merges: true, ..PLAIN }),
    (&["ufakzeka"], PreTokenizer { stages: UFAKZEKA, ..PLAIN }),
    (&["laguna"], PreTokenizer { stages: LAGUNA, ..PLAIN }),
    (&["tiny_aya", "cohere2moe"], PreTokenizer { stages: TINY_AYA, ..PLAIN }),
    (&["granite-embed-multi-97m"], PreTokenizer { stages: GRANITE_EMBED, ignore_merges: true, ..PLAIN }),
    (&["gemma4"], PreTokenizer { stages: LINES, add_bos: true, raw: true, ..PLAIN }),
    (&["sarvam-moe"], PreTokenizer { stages: LINES, raw: true, ..PLAIN }),
];

/// The pre-tokenizer of a name. The absent or empty name of old files is `default`.
pub(crate) fn lookup(name: &str) -> Option<&'static PreTokenizer> {
    let name = if name.is_empty() { "default" } else { name };
    TABLE.iter().find(|(names, _)| names.contains(&name)).map(|(_, pre)| pre)
}

/// All names, for messages and tests.
pub(crate) fn known_names() -> impl Iterator<Item = &'static str> {
    TABLE.iter().flat_map(|(names, _)| names.iter().copied())
}

/// `[\p{P}\$\+<=>\^~\|]`
fn is_punctuation_or_maths(c: Char) -> bool {
    c.is_punctuation()
        || matches!(char::from_u32(c.code()), Some('$' | '+' | '<' | '=' | '>' | '^' | '~' | '|'))
}

/// `[\p{P}\$\+<=>\^~\|`]`
fn is_punctuation_or_maths_or_backtick(c: Char) -> bool {
    is_punctuation_or_maths(c) || c.is('`')
}

/// `[一-龥ぁ-ゟ゠-ヿ]` with the whole hiragana block.
fn is_han_or_kana(c: Char) -> bool {
    matches!(c.code(), 0x4E00..=0x9FA5 | 0x3040..=0x30FF)
}

/// `[一-龥ࠀ-一가-퟿]`: from U+0800, so it holds far more than CJK.
fn is_deepseek_cjk(c: Char) -> bool {
    !c.is_space() && matches!(c.code(), 0x0800..=0x9FA5 | 0xAC00..=0xD7FF)
}

/// `[!-/:-~！-／：-～‘-‟　-。]`: two of the ranges hold letters. U+3000 counts as white space before it counts here.
fn is_deepseek_sign(c: Char) -> bool {
    !c.is_space()
        && matches!(c.code(),
            0x21..=0x2F | 0x3A..=0x7E | 0xFF01..=0xFF0F | 0xFF1A..=0xFF5E | 0x2018..=0x201F | 0x3001..=0x3002)
}

/// `[^\s|.,!?…。，、।۔،()]`
fn is_poro_word(c: Char) -> bool {
    !c.is_space()
        && !matches!(
            char::from_u32(c.code()),
            Some('(' | ')' | '|' | '.' | ',' | '!' | '?' | '…' | '。' | '，' | '、' | '।' | '۔' | '،')
        )
}

/// The letters of scripts with two cases, as DeepSeek lists them by range.
fn is_bicameral(c: Char) -> bool {
    BICAMERAL
        .binary_search_by(|&(low, high)| {
            if high < c.code() {
                std::cmp::Ordering::Less
            } else if low > c.code() {
                std::cmp::Ordering::Greater
            } else {
                std::cmp::Ordering::Equal
            }
        })
        .is_ok()
}

#[rustfmt::skip]
static BICAMERAL: &[(u32, u32)] = &[
    (0x41, 0x5A), (0x61, 0x7A), (0xB5, 0xB5), (0xC0, 0xD6), (0xD8, 0xF6), (0xF8, 0x1BA), (0x1BC, 0x1BF),
    (0x1C4, 0x293), (0x295, 0x2AF), (0x370, 0x373), (0x376, 0x377), (0x37B, 0x37D), (0x37F, 0x37F), (0x386, 0x386),
    (0x388, 0x38A), (0x38C, 0x38C), (0x38E, 0x3A1), (0x3A3, 0x3F5), (0x3F7, 0x481), (0x48A, 0x52F), (0x531, 0x556),
    (0x10A0, 0x10C5), (0x13A0, 0x13F5), (0x13F8, 0x13FD), (0x1C90, 0x1CBA), (0x1CBD, 0x1CBF), (0x1D00, 0x1D2B),
    (0x1D6B, 0x1D77), (0x1D79, 0x1D9A), (0x1E00, 0x1F15), (0x1F18, 0x1F1D), (0x1F20, 0x1F45), (0x1F48, 0x1F4D),
    (0x1F50, 0x1F57), (0x1F59, 0x1F59), (0x1F5B, 0x1F5B), (0x1F5D, 0x1F5D), (0x1F5F, 0x1F7D), (0x1F80, 0x1FB4),
    (0x1FB6, 0x1FBC), (0x1FBE, 0x1FBE), (0x1FC2, 0x1FC4), (0x1FC6, 0x1FCC), (0x1FD0, 0x1FD3), (0x1FD6, 0x1FDB),
    (0x1FE0, 0x1FEC), (0x1FF2, 0x1FF4), (0x1FF6, 0x1FFC), (0x2102, 0x2102), (0x2107, 0x2107), (0x210A, 0x2113),
    (0x2115, 0x2115), (0x2119, 0x211D), (0x2124, 0x2124), (0x2126, 0x2126), (0x2128, 0x2128), (0x212A, 0x212D),
    (0x212F, 0x2134), (0x2139, 0x2139), (0x213C, 0x213F), (0x2145, 0x2149), (0x214E, 0x214E), (0x2183, 0x2184),
    (0x2C00, 0x2C7B), (0x2C7E, 0x2CE4), (0x2CEB, 0x2CEE), (0x2CF2, 0x2CF3), (0xA640, 0xA66D), (0xA680, 0xA69B),
    (0xA722, 0xA76F), (0xA771, 0xA787), (0xA78B, 0xA78E), (0xAB70, 0xABBF), (0xFB00, 0xFB06), (0xFB13, 0xFB17),
    (0xFF21, 0xFF3A), (0xFF41, 0xFF5A), (0x10400, 0x1044F), (0x104B0, 0x104D3), (0x104D8, 0x104FB),
    (0x10C80, 0x10CB2), (0x10CC0, 0x10CF2), (0x118A0, 0x118DF), (0x1E900, 0x1E943),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        let mut names: Vec<_> = known_names().collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        assert!(names.iter().all(|name| lookup(name).is_some()));
        assert!(lookup("no-such-pre-tokenizer").is_none());
        assert!(std::ptr::eq(lookup("").unwrap().stages, lookup("default").unwrap().stages));
    }

    #[test]
    fn ranges_are_sorted_and_disjoint() {
        assert!(BICAMERAL.iter().all(|(low, high)| low <= high));
        assert!(BICAMERAL.windows(2).all(|w| w[0].1 < w[1].0));
    }
}
