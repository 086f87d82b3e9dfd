//! Which tokens have a role, from the file's ids and from well-known texts.
//!
//! Converted files often miss an id or give a token the wrong type, and a model whose end-of-turn token is not known
//! never stops. The texts and corrections here are those that the reference engine applies.

use crate::vocab::{SpecialTokens, Vocab, attr};
use pannier_gguf::Metadata;

/// Texts that end a turn, best known first.
const END_OF_TURN: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
];

/// Texts that end the generation, besides the tokens with a role.
const END_OF_GENERATION: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// Tokens of the harmony format that a client must see.
const ALWAYS_SHOWN: &[&str] = &["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

struct Role {
    slot: fn(&mut SpecialTokens) -> &mut Option<u32>,
    /// Keys that give the id; later ones win.
    keys: &'static [&'static str],
    /// Texts that give it if no key does.
    texts: &'static [&'static str],
}

static ROLES: &[Role] = &[
    Role { slot: |s| &mut s.bos, keys: &["tokenizer.ggml.bos_token_id"], texts: &[] },
    Role { slot: |s| &mut s.eos, keys: &["tokenizer.ggml.eos_token_id"], texts: &[] },
    Role { slot: |s| &mut s.eot, keys: &["tokenizer.ggml.eot_token_id"], texts: END_OF_TURN },
    Role { slot: |s| &mut s.eom, keys: &["tokenizer.ggml.eom_token_id"], texts: &["<|eom_id|>"] },
    Role { slot: |s| &mut s.unk, keys: &["tokenizer.ggml.unknown_token_id"], texts: &[] },
    Role {
        slot: |s| &mut s.sep,
        keys: &["tokenizer.ggml.seperator_token_id", "tokenizer.ggml.separator_token_id"],
        texts: &[],
    },
    Role { slot: |s| &mut s.pad, keys: &["tokenizer.ggml.padding_token_id"], texts: &[] },
    Role {
        slot: |s| &mut s.fim_pre,
        keys: &["tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id"],
        texts: &[
            "<|fim_prefix|>",
            "<fim-prefix>",
            "<fim_prefix>",
            "<｜fim▁begin｜>",
            "<PRE>",
            "▁<PRE>",
            "<|code_prefix|>",
            "<|prefix|>",
        ],
    },
    Role {
        slot: |s| &mut s.fim_suf,
        keys: &["tokenizer.ggml.fim_suf_token_id", "tokenizer.ggml.suffix_token_id"],
        texts: &[
            "<|fim_suffix|>",
            "<fim-suffix>",
            "<fim_suffix>",
            "<｜fim▁hole｜>",
            "<SUF>",
            "▁<SUF>",
            "<|code_suffix|>",
            "<|suffix|>",
        ],
    },
    Role {
        slot: |s| &mut s.fim_mid,
        keys: &["tokenizer.ggml.fim_mid_token_id", "tokenizer.ggml.middle_token_id"],
        texts: &[
            "<|fim_middle|>",
            "<fim-middle>",
            "<fim_middle>",
            "<｜fim▁end｜>",
            "<MID>",
            "▁<MID>",
            "<|code_middle|>",
            "<|middle|>",
        ],
    },
    Role {
        slot: |s| &mut s.fim_pad,
        keys: &["tokenizer.ggml.fim_pad_token_id"],
        texts: &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"],
    },
    Role {
        slot: |s| &mut s.fim_rep,
        keys: &["tokenizer.ggml.fim_rep_token_id"],
        texts: &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"],
    },
    Role { slot: |s| &mut s.fim_sep, keys: &["tokenizer.ggml.fim_sep_token_id"], texts: &["<|file_sep|>"] },
];

/// Fills in the special tokens, the end-of-generation set and the corrected types.
pub(crate) fn find_special(vocab: &mut Vocab, metadata: &Metadata, model: &str) {
    if model == "llama" {
        // SentencePiece's own order, for files that leave it out.
        let has = |id: u32| ((id as usize) < vocab.len()).then_some(id);
        vocab.special = SpecialTokens { unk: has(0), bos: has(1), eos: has(2), ..SpecialTokens::default() };
    }
    for role in ROLES {
        for key in role.keys {
            match metadata.opt_u32(key) {
                Ok(None) => {}
                Ok(Some(id)) if (id as usize) < vocab.len() => *(role.slot)(&mut vocab.special) = Some(id),
                Ok(Some(id)) => {
                    vocab.notes.push(format!("`{key}` is {id}, which is not in the vocabulary: ignored"))
                }
                // -1 is how some converters write "none".
                Err(e) => vocab.notes.push(format!("`{key}` ignored: {e}")),
            }
        }
        if (role.slot)(&mut vocab.special).is_none()
            && let Some(id) = role.texts.iter().find_map(|text| vocab.id_of(text.as_bytes()))
        {
            *(role.slot)(&mut vocab.special) = Some(id);
            make_control(vocab, id);
        }
    }
    find_end_of_generation(vocab);
}

fn make_control(vocab: &mut Vocab, id: u32) {
    let attr = vocab.attr(id);
    vocab.set_attr(id, attr | attr::CONTROL);
}

fn find_end_of_generation(vocab: &mut Vocab) {
    let special = vocab.special;
    let mut eog: Vec<u32> =
        [special.fim_pad, special.fim_rep, special.fim_sep].into_iter().flatten().collect();
    for text in END_OF_GENERATION {
        if let Some(id) = vocab.id_of(text.as_bytes()) {
            eog.push(id);
            make_control(vocab, id);
        }
    }
    for text in ALWAYS_SHOWN {
        if let Some(id) = vocab.id_of(text.as_bytes()) {
            vocab.set_attr(id, attr::USER_DEFINED);
        }
    }
    eog.extend([special.eos, special.eot, special.eom].into_iter().flatten());
    eog.sort_unstable();
    eog.dedup();

    // In the harmony formats `<|end|>` only ends a message, not the turn.
    let has = |text: &str| vocab.id_of(text.as_bytes()).is_some_and(|id| eog.contains(&id));
    let call = has("<|call|>") || has("<|calls|>");
    let ends_messages = call && (has("<|return|>") || has("<|flush|>"));
    // Where these exist, `</s>` is an ordinary piece (of HTML, say).
    let plain_s = has("<|tool_response>") || has("<|plamo:eos|>");
    for (applies, text, attr) in
        [(ends_messages, "<|end|>", attr::USER_DEFINED), (plain_s, "</s>", attr::NORMAL)]
    {
        if applies
            && let Some(id) = vocab.id_of(text.as_bytes())
            && let Ok(at) = eog.binary_search(&id)
        {
            eog.remove(at);
            vocab.set_attr(id, attr);
        }
    }
    vocab.eog = eog;
}

/// Corrections that only a model's name tells.
pub(crate) fn fix_attributes(vocab: &mut Vocab, metadata: &Metadata) {
    let name = metadata.opt_str("general.name").ok().flatten().unwrap_or("").to_lowercase();
    if name.contains("phi-3") || name.contains("phi3") {
        // Phi-3's added tokens swallow the white space behind them, but for these three.
        for id in 0..vocab.len() as u32 {
            let attr = vocab.attr(id);
            let text = vocab.text(id);
            let special = attr & attr::SPECIAL != 0 || text == "</s>";
            if special && !matches!(text, "<unk>" | "<s>" | "<|endoftext|>") {
                vocab.set_attr(id, attr | attr::RSTRIP);
            }
        }
    }
}
