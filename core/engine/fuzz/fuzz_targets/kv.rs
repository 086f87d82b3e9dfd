//! Any bytes at all as a saved sequence, with a checksum that fits so that they are looked at: read them, and use what was read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pannier::kv::{KvCache, KvGeometry, KvOptions, KvType, Limits, Saved};
use pannier::memory::Accountant;
use sha2::{Digest, Sha256};
use std::io::Cursor;

const PLAIN: KvGeometry =
    KvGeometry { kv_heads: 1, k_dim: 4, v_dim: 8, window: None, k: KvType::F16, v: KvType::Q8, summaries: false };
const LAYERS: [KvGeometry; 4] = [
    PLAIN,
    KvGeometry { window: Some(40), k: KvType::Q4, v: KvType::Q4, ..PLAIN },
    KvGeometry { k: KvType::Q4Channel, v: KvType::Q4, ..PLAIN },
    KvGeometry { k: KvType::Q8Channel, v: KvType::Q8, ..PLAIN },
];
const LIMITS: Limits = Limits { context: 4096, vocab: 1000, state: 0 };

fuzz_target!(|data: &[u8]| {
    let accountant = Accountant::new(Some(4 << 20));
    let mut cache = KvCache::new(&LAYERS, KvOptions::default(), &accountant).expect("the geometry is fine");
    let mut file = data.to_vec();
    let fingerprint = [0; 32];
    // As it is, it is refused; with the checksum of its own bytes, it is parsed.
    let _ = cache.restore(&fingerprint, &LIMITS, &mut Cursor::new(data));
    file.extend(Sha256::digest(data));
    if let Ok((mut seq, saved)) = cache.restore(&fingerprint, &LIMITS, &mut Cursor::new(&file)) {
        assert_eq!(seq.len(), saved.tokens.len());
        for layer in 0..LAYERS.len() {
            let pages = cache.pages(&seq, layer).expect("a layer of the cache");
            for page in pages.first_token / 32..pages.table.len() {
                let _ = pages.page(page);
            }
        }
        let mut again = Vec::new();
        cache.save(&seq, &fingerprint, &saved, &mut again).expect("what was read can be written");
        let (other, same) = cache
            .restore(&fingerprint, &LIMITS, &mut Cursor::new(&again))
            .expect("what was written can be read");
        assert_eq!((other.len(), &same), (seq.len(), &saved));
        cache.publish(&seq, &saved.tokens, None);
        let _ = cache.truncate(&mut seq, saved.tokens.len() / 2);
        if cache.prepare(&mut seq, 1).is_ok() {
            cache.commit(&mut seq, 1);
        }
        let _: &Saved = &saved;
    }
    cache.limit_prefixes(0);
    assert_eq!(cache.pages_in_use(), 0);
});
