"""A tiny random checkpoint in the published layout, byte for byte what the goldens were made with."""

# ruff: noqa
# mypy: ignore-errors
import json, math, os, struct, wave
import numpy as np
import torch
from safetensors.torch import save_file


def build(directory: str, seed: int = 0) -> None:
    """Write the checkpoint into `directory`."""
    DT = torch.float32
    G = torch.Generator().manual_seed(seed)
    OUT = directory
    os.makedirs(OUT, exist_ok=True)

    def lin(o, i, gain=1.0):
        return torch.randn(o, i, generator=G) * (gain / math.sqrt(i))

    def vec(n, s=0.05):
        return torch.randn(n, generator=G) * s

    def norm(n):
        return 1.0 + torch.randn(n, generator=G) * 0.1

    def dump(path, obj):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as f:
            json.dump(obj, f, ensure_ascii=False, indent=1)

    # ---------------------------------------------------------------- tokenizers
    THINKER_SPECIALS = [
        "<|startoftext|>",
        "<|endoftext|>",
        "[CLS]",
        "[gMASK]",
        "<|role_end|>",
        "<role>",
        "</role>",
        "<tool_call>",
        "</tool_call>",
        "<tool_response>",
        "</tool_response>",
        "<think>",
        "</think>",
        # order of the real block 157157..157178
        "<imagePatch>",
        "<image>",
        "</image>",
        "<video>",
        "</video>",
        "<gen_imagePatch>",
        "<gen_image>",
        "</gen_image>",
        "<imageHere>",
        "<end_of_chunk>",
        "<end_of_audio>",
        "<audioPatch>",
        "<audio>",
        "</audio>",
        "<gen_audioPatch>",
        "<gen_audio>",
        "</gen_audio>",
        "<audioHere>",
        "<framePatch>",
        "<text>",
        "<asr>",
        "<tts>",
    ]
    TALKER_SPECIALS = [
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        "<|vision_start|>",
        "<|vision_end|>",
        "<|vision_pad|>",
        "<audio>",
        "</audio>",
        "<audioPatch>",
    ]
    TRAIN_TEXT = [
        "the quick brown fox speaks about speech generation and images",
        "你好，世界。今天天气很好，我们去公园吧！",
        "speaker_1: Text input: Please generate speech based on the following description.",
    ]

    def make_tokenizer(path, specials, eos, pad, bos=None, extra=None):
        from tokenizers import Tokenizer, models, pre_tokenizers, decoders, trainers

        tok = Tokenizer(models.BPE())
        tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tok.decoder = decoders.ByteLevel()
        tr = trainers.BpeTrainer(
            vocab_size=400,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tok.train_from_iterator(TRAIN_TEXT * 4, tr)
        tok.add_special_tokens(specials)
        os.makedirs(path, exist_ok=True)
        tok.save(os.path.join(path, "tokenizer.json"))
        cfg = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": eos,
            "pad_token": pad,
            "clean_up_tokenization_spaces": False,
            "model_max_length": 32768,
        }
        if bos:
            cfg["bos_token"] = bos
        cfg.update(extra or {})
        dump(os.path.join(path, "tokenizer_config.json"), cfg)
        return tok

    CHAT_TEMPLATE = (  # own wording of the published role format
        "{{ '<role>SYSTEM</role>' }}{% if messages[0].role == 'system' %}{{ messages[0].content + '\n\n' }}{% endif %}"
        "{{ 'detailed thinking off<|role_end|>' }}{% for m in messages %}{% if m.role == 'user' %}"
        "{{ '<role>HUMAN</role>' + m.content + '<|role_end|>' }}{% elif m.role == 'assistant' %}"
        "{{ '<role>ASSISTANT</role>' + m.content + '<|role_end|>' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<role>ASSISTANT</role>' }}{% endif %}"
    )
    tk = make_tokenizer(
        OUT,
        THINKER_SPECIALS,
        "<|role_end|>",
        "<|role_end|>",
        "<|startoftext|>",
        {"chat_template": CHAT_TEMPLATE},
    )
    tid = tk.token_to_id
    VOCAB = 512
    assert tk.get_vocab_size() <= VOCAB

    # ---------------------------------------------------------------- root config
    H, HD, NH, NKV, L = 256, 128, 2, 1, 3
    E, TOPK, NG, TG, MI, DI = 16, 4, 4, 2, 32, 128
    llm = dict(
        architectures=["BailingMoeV2ForCausalLM"],
        attention_dropout=0.0,
        eos_token_id=tid("<|role_end|>"),
        pad_token_id=tid("<|endoftext|>"),
        first_k_dense_replace=1,
        hidden_act="silu",
        hidden_size=H,
        head_dim=HD,
        image_patch_token=tid("<imagePatch>"),
        video_patch_token=tid("<framePatch>"),
        audio_patch_token=tid("<audioPatch>"),
        image_start_token=tid("<image>"),
        image_end_token=tid("</image>"),
        video_start_token=tid("<video>"),
        video_end_token=tid("</video>"),
        audio_start_token=tid("<audio>"),
        audio_end_token=tid("</audio>"),
        initializer_range=0.006,
        intermediate_size=DI,
        max_position_embeddings=4096,
        model_type="bailing_moe_v2",
        moe_intermediate_size=MI,
        num_experts=E,
        router_type="MultiRouter",
        num_shared_experts=1,
        norm_topk_prob=True,
        num_attention_heads=NH,
        num_experts_per_tok=TOPK,
        num_hidden_layers=L,
        num_key_value_heads=NKV,
        rms_norm_eps=1e-6,
        rope_scaling={"factor": None, "type": "video_rope"},
        rope_theta=2400000,
        tie_word_embeddings=False,
        use_cache=True,
        use_bias=False,
        use_qkv_bias=False,
        vocab_size=VOCAB,
        use_qk_norm=True,
        use_expert_bias=True,
        embedding_dropout=0.0,
        norm_head=False,
        output_dropout=0.0,
        partial_rotary_factor=0.5,
        topk_group=TG,
        n_group=NG,
        moe_router_topk_scaling_factor=2.5,
        output_router_logits=False,
        use_interleaved_frame_timestamp=True,
        torch_dtype="float32",
    )
    VH, VD, VI, VN, VPOS = 64, 4, 128, 4, 64
    DEEP = [1, 2, 3]
    vision = dict(
        architectures=["Qwen3MoeVisionTransformer"],
        deepstack_visual_indexes=DEEP,
        depth=VD,
        dtype="float32",
        hidden_act="gelu_pytorch_tanh",
        hidden_size=VH,
        in_channels=3,
        initializer_range=0.02,
        intermediate_size=VI,
        model_type="qwen3_moe_vit",
        num_heads=VN,
        num_position_embeddings=VPOS,
        out_hidden_size=H,
        patch_size=16,
        spatial_merge_size=2,
        temporal_patch_size=2,
    )
    AS, AH, AL, ACTX = 64, 4, 2, 1500
    audio = dict(
        ds_kernel_size=3,
        ds_stride=2,
        norm_query_embeds=True,
        whisper_encoder_config=dict(n_ctx=ACTX, n_head=AH, n_layer=AL, n_mels=128, n_state=AS),
    )
    dump(
        f"{OUT}/config.json",
        dict(
            architectures=["BailingMM2NativeForConditionalGeneration"],
            model_type="bailingmm_moe_v2_lite",
            mlp_depth=2,
            llm_config=llm,
            vision_config=vision,
            audio_config=audio,
            torch_dtype="float32",
            transformers_version="4.57.1",
            auto_map={"AutoConfig": "configuration_bailingmm2.BailingMM2Config"},
        ),
    )
    dump(
        f"{OUT}/preprocessor_config.json",
        dict(
            min_pixels=4096,
            max_pixels=16777216,
            patch_size=16,
            temporal_patch_size=2,
            merge_size=2,
            image_mean=[0.48145466, 0.4578275, 0.40821073],
            image_std=[0.26862954, 0.26130258, 0.27577711],
            image_token="<image>",
            video_token="<video>",
            audio_token="<audio>",
            use_interleaved_frame_timestamp=True,
            sampling_rate=16000,
            image_processor_type="BailingMM2ImageProcessor",
            feature_extractor_type="BailingMM2AudioProcessor",
            processor_class="BailingMM2Processor",
            whisper_frontend_args={"n_mels": 128},
            wav_frontend_args=dict(
                cmvn_file="am.mvn",
                fs=16000,
                window="hamming",
                n_mels=80,
                frame_length=25,
                frame_shift=10,
                lfr_m=7,
                lfr_n=6,
            ),
        ),
    )

    # ---------------------------------------------------------------- thinker weights
    W = {}
    W["model.model.word_embeddings.weight"] = lin(VOCAB, H)
    for i in range(L):
        p = f"model.model.layers.{i}."
        W[p + "input_layernorm.weight"] = norm(H)
        W[p + "post_attention_layernorm.weight"] = norm(H)
        W[p + "attention.query_key_value.weight"] = lin((NH + 2 * NKV) * HD, H, 1.5)
        W[p + "attention.dense.weight"] = lin(H, NH * HD)
        W[p + "attention.q_norm.weight"] = norm(HD)
        W[p + "attention.k_norm.weight"] = norm(HD)

        def mlp(q, inner):
            W[q + "gate_proj.weight"] = lin(inner, H)
            W[q + "up_proj.weight"] = lin(inner, H)
            W[q + "down_proj.weight"] = lin(H, inner)

        if i < llm["first_k_dense_replace"]:
            mlp(p + "mlp.", DI)
        else:
            for g in ("gate", "image_gate", "audio_gate"):
                W[p + f"mlp.{g}.weight"] = lin(E, H)
                W[p + f"mlp.{g}.expert_bias"] = vec(E, 0.1)
            for e in range(E):
                mlp(p + f"mlp.experts.{e}.", MI)
            mlp(p + "mlp.shared_experts.", MI)
    W["model.model.norm.weight"] = norm(H)
    W["model.lm_head.weight"] = lin(VOCAB, H, 3.0)

    # vision tower
    W["vision.patch_embed.proj.weight"] = lin(VH, 3 * 2 * 16 * 16).view(VH, 3, 2, 16, 16)
    W["vision.patch_embed.proj.bias"] = vec(VH)
    W["vision.pos_embed.weight"] = torch.randn(VPOS, VH, generator=G) * 0.3
    for i in range(VD):
        p = f"vision.blocks.{i}."
        for n in ("norm1", "norm2"):
            W[p + n + ".weight"], W[p + n + ".bias"] = norm(VH), vec(VH)
        for n, o, k in (
            ("attn.qkv", 3 * VH, VH),
            ("attn.proj", VH, VH),
            ("mlp.linear_fc1", VI, VH),
            ("mlp.linear_fc2", VH, VI),
        ):
            W[p + n + ".weight"], W[p + n + ".bias"] = lin(o, k), vec(o)
    M = VH * 4
    for p, nd in [("vision.merger.", VH)] + [
        (f"vision.deepstack_merger_list.{j}.", M) for j in range(len(DEEP))
    ]:
        W[p + "norm.weight"], W[p + "norm.bias"] = norm(nd), vec(nd)
        W[p + "linear_fc1.weight"], W[p + "linear_fc1.bias"] = lin(M, M), vec(M)
        W[p + "linear_fc2.weight"], W[p + "linear_fc2.bias"] = lin(H, M), vec(H)
    for j in (0, 2):
        W[f"linear_proj.{j}.weight"], W[f"linear_proj.{j}.bias"] = lin(H, H), vec(H)

    # audio encoder (openai-whisper names); positional_embedding is the whisper sinusoid, stored as a tensor
    W["audio.conv1.weight"], W["audio.conv1.bias"] = lin(AS, 128 * 3).view(AS, 128, 3), vec(AS)
    W["audio.conv2.weight"], W["audio.conv2.bias"] = lin(AS, AS * 3).view(AS, AS, 3), vec(AS)
    inc = math.log(10000) / (AS // 2 - 1)
    ang = torch.arange(ACTX)[:, None] * torch.exp(-inc * torch.arange(AS // 2))[None]
    W["audio.positional_embedding"] = torch.cat([ang.sin(), ang.cos()], 1)
    for i in range(AL):
        p = f"audio.blocks.{i}."
        for n in ("query", "key", "value", "out"):
            W[p + f"attn.{n}.weight"] = lin(AS, AS)
            if n != "key":
                W[p + f"attn.{n}.bias"] = vec(AS)
        for n in ("attn_ln", "mlp_ln"):
            W[p + n + ".weight"], W[p + n + ".bias"] = norm(AS), vec(AS)
        W[p + "mlp.0.weight"], W[p + "mlp.0.bias"] = lin(4 * AS, AS), vec(4 * AS)
        W[p + "mlp.2.weight"], W[p + "mlp.2.bias"] = lin(AS, 4 * AS), vec(AS)
    W["audio.ln_post.weight"], W["audio.ln_post.bias"] = norm(AS), vec(AS)
    W["linear_proj_audio.0.weight"], W["linear_proj_audio.0.bias"] = (
        lin(H, AS * 3).view(H, AS, 3),
        vec(H),
    )
    W["linear_proj_audio.3.weight"], W["linear_proj_audio.3.bias"] = lin(H, H), vec(H)

    def fin(d):
        return {k: v.to(DT).contiguous() for k, v in d.items()}

    W = fin(W)
    names = sorted(W)
    half = len(names) // 2
    shards = {
        "model-00001-of-00002.safetensors": names[:half],
        "model-00002-of-00002.safetensors": names[half:],
    }
    wm = {}
    for f, ns in shards.items():
        save_file({n: W[n] for n in ns}, f"{OUT}/{f}", metadata={"format": "pt"})
        wm.update({n: f for n in ns})
    dump(
        f"{OUT}/model.safetensors.index.json",
        {
            "metadata": {"total_size": sum(v.numel() * v.element_size() for v in W.values())},
            "weight_map": wm,
        },
    )

    # ---------------------------------------------------------------- talker
    T = f"{OUT}/talker"
    tt = make_tokenizer(f"{T}/llm", TALKER_SPECIALS, "<|im_end|>", "<|endoftext|>")
    TV, TH, TL, TNH, TKV, TI = 512, 64, 2, 4, 2, 128
    tllm = dict(
        architectures=["Qwen2ForCausalLM"],
        model_type="qwen2",
        vocab_size=TV,
        hidden_size=TH,
        intermediate_size=TI,
        num_hidden_layers=TL,
        num_attention_heads=TNH,
        num_key_value_heads=TKV,
        hidden_act="silu",
        max_position_embeddings=4096,
        rms_norm_eps=1e-6,
        rope_theta=1000000.0,
        attention_dropout=0.0,
        tie_word_embeddings=True,
        use_sliding_window=False,
        max_window_layers=TL,
        bos_token_id=tt.token_to_id("<|endoftext|>"),
        eos_token_id=tt.token_to_id("<|im_end|>"),
        torch_dtype="float32",
    )
    dump(f"{T}/llm/config.json", tllm)
    DH, DD, DN = 64, 2, 2  # DiT
    AGH, AGD, AGN = 96, 2, 3  # aggregator
    flow = dict(
        in_channels=64,
        hidden_size=DH,
        depth=DD,
        num_heads=DN,
        mlp_ratio=4.0,
        dropout=0.0,
        attn_backend="torch",
    )
    agg = dict(
        in_channels=64,
        hidden_size=AGH,
        depth=AGD,
        num_heads=AGN,
        mlp_ratio=4.0,
        dropout=0.0,
        attn_backend="torch",
    )
    dump(
        f"{T}/config.json",
        dict(
            architectures=["BailingTalker2"],
            model_type="bailing_talker",
            flowmodel=flow,
            aggregator=agg,
            steps=10,
            patch_size=4,
            history_patch_size=32,
            latent_dim=64,
            spk_dim=192,
            torch_dtype="float32",
        ),
    )

    def qwen2(p, vocab, h, nl, nh, kv, inter):
        d = {}
        if vocab:
            d[p + "embed_tokens.weight"] = torch.randn(vocab, h, generator=G) * 0.5
        hd = h // nh
        for i in range(nl):
            q = f"{p}layers.{i}."
            for n, o in (("q_proj", h), ("k_proj", kv * hd), ("v_proj", kv * hd)):
                d[q + f"self_attn.{n}.weight"], d[q + f"self_attn.{n}.bias"] = lin(o, h), vec(o)
            d[q + "self_attn.o_proj.weight"] = lin(h, h)
            d[q + "mlp.gate_proj.weight"], d[q + "mlp.up_proj.weight"] = (
                lin(inter, h),
                lin(inter, h),
            )
            d[q + "mlp.down_proj.weight"] = lin(h, inter)
            d[q + "input_layernorm.weight"], d[q + "post_attention_layernorm.weight"] = (
                norm(h),
                norm(h),
            )
        d[p + "norm.weight"] = norm(h)
        return d

    def dit_blocks(p, h, depth):
        d = {}
        for i in range(depth):
            q = f"{p}blocks.{i}."
            d[q + "norm1.weight"], d[q + "norm2.weight"] = norm(h), norm(h)
            for n in ("to_q", "to_k", "to_v", "to_out.0"):
                d[q + f"attn.{n}.weight"], d[q + f"attn.{n}.bias"] = lin(h, h), vec(h)
            d[q + "mlp.ff.0.0.weight"], d[q + "mlp.ff.0.0.bias"] = lin(4 * h, h), vec(4 * h)
            d[q + "mlp.ff.2.weight"], d[q + "mlp.ff.2.bias"] = lin(h, 4 * h), vec(h)
        return d

    X = qwen2("model.", TV, TH, TL, TNH, TKV, TI)
    c = "cfm.model."
    X[c + "t_embedder.time_mlp.0.weight"], X[c + "t_embedder.time_mlp.0.bias"] = (
        lin(DH, 256, 2.0),
        vec(DH),
    )
    X[c + "t_embedder.time_mlp.2.weight"], X[c + "t_embedder.time_mlp.2.bias"] = (
        lin(DH, DH),
        vec(DH),
    )
    X[c + "x_embedder.weight"], X[c + "x_embedder.bias"] = lin(DH, 64), vec(DH)
    X[c + "c_embedder.cond_embedder.weight"], X[c + "c_embedder.cond_embedder.bias"] = (
        lin(DH, TH),
        vec(DH),
    )
    X[c + "rotary_embed.inv_freq"] = 1.0 / (
        10000 ** (torch.arange(0, DH // DN, 2).float() / (DH // DN))
    )
    X.update(dit_blocks(c, DH, DD))
    X[c + "final_layer.norm_final.weight"] = norm(DH)
    X[c + "final_layer.linear.weight"], X[c + "final_layer.linear.bias"] = lin(64, DH), vec(64)
    g = "aggregator."
    X[g + "word_embedder.weight"] = torch.randn(1, AGH, generator=G)
    X[g + "x_embedder.weight"], X[g + "x_embedder.bias"] = lin(AGH, 64), vec(AGH)
    X[g + "rotary_embed.inv_freq"] = 1.0 / (
        10000 ** (torch.arange(0, AGH // AGN, 2).float() / (AGH // AGN))
    )
    X.update(dit_blocks(g, AGH, AGD))
    X[g + "final_layer.norm_final.weight"] = norm(AGH)
    X[g + "final_layer.linear.weight"], X[g + "final_layer.linear.bias"] = lin(TH, AGH), vec(TH)
    X["stop_head.weight"], X["stop_head.bias"] = lin(2, TH, 2.0), torch.tensor([-0.55, 0.55])
    X["spk_head.weight"], X["spk_head.bias"] = lin(TH, 192), vec(TH)
    inv = {k: v for k, v in X.items() if k.endswith("inv_freq")}
    X = fin(X)
    X.update(inv)  # rope frequencies stay fp32
    save_file(X, f"{T}/model.safetensors", metadata={"format": "pt"})

    # ---------------------------------------------------------------- AudioVAE (44.1 kHz, 50 Hz frames, patch 4 -> 12.5 Hz latents)
    VAH, VAL, HOP, SW = 32, 2, 882, 16
    EL = 6  # encoder depth > 4 on purpose: see ming.md (the published encoder runs only 4 of its layers)
    bb = dict(
        architectures=["Qwen2Model"],
        model_type="qwen2",
        vocab_size=1,
        hidden_size=VAH,
        intermediate_size=64,
        num_hidden_layers=VAL,
        num_attention_heads=2,
        num_key_value_heads=2,
        hidden_act="silu",
        max_position_embeddings=4096,
        rms_norm_eps=1e-6,
        rope_theta=10000.0,
        attention_dropout=0.0,
        use_sliding_window=True,
        sliding_window=SW,
        max_window_layers=0,
        tie_word_embeddings=False,
    )
    dump(
        f"{T}/vae/config.json",
        dict(
            architectures=["AudioVAE"],
            sample_rate=44100,
            patch_size=4,
            init_method="kaiming",
            enc_kwargs=dict(
                backbone=dict(bb, num_hidden_layers=EL), input_dim=HOP, hop_size=HOP, latent_dim=64
            ),
            dec_kwargs=dict(backbone=bb, output_dim=HOP, latent_dim=64),
            torch_dtype="float32",
        ),
    )
    V = {}
    e = "encoder."
    V.update(qwen2(e + "encoder.", 1, VAH, EL, 2, 2, 64))
    V.update(qwen2(e + "aggregator.", 1, VAH, 4, 2, 2, 64))  # always 4 layers
    V[e + "cls_embed"] = torch.randn(1, 1, VAH, generator=G) * 0.02
    V[e + "fc1.weight"] = lin(VAH, HOP, 4.0)
    V[e + "fc2.weight"], V[e + "fc2.bias"] = lin(VAH, VAH), vec(VAH)
    V[e + "fc3.weight"], V[e + "fc3.bias"] = lin(128, VAH), vec(128)
    V[e + "norm.weight"], V[e + "norm.bias"] = norm(VAH), vec(VAH)
    d = "decoder."
    V.update(qwen2(d + "decoder.", 1, VAH, VAL, 2, 2, 64))
    V[d + "fc1.weight"], V[d + "fc1.bias"] = lin(VAH, 64), vec(VAH)
    V[d + "head.out.weight"], V[d + "head.out.bias"] = lin(4 * HOP + 2, VAH), vec(4 * HOP + 2)
    V[d + "head.istft.window"] = torch.hann_window(4 * HOP)
    win = V[d + "head.istft.window"]
    V = fin(V)
    V[d + "head.istft.window"] = win
    save_file(V, f"{T}/vae/model.safetensors", metadata={"format": "pt"})

    # ---------------------------------------------------------------- voices
    dump(
        f"{T}/data/voice_name.json",
        {
            "DB30": {"prompt_text": "感谢你的认可。", "prompt_wav_path": "data/spks/prompt.wav"},
            "lingguang": {
                "prompt_text": "诶，你今天有空吗？我们能不能聊聊这件事啊？",
                "prompt_wav_path": "data/lg/prompt_15014.wav",
            },
        },
    )
    rng = np.random.default_rng(seed)

    def wav(path, sr, sec, f0):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        t = np.arange(int(sr * sec)) / sr
        x = (
            0.3 * np.sin(2 * np.pi * f0 * t)
            + 0.1 * np.sin(2 * np.pi * 3 * f0 * t)
            + 0.02 * rng.standard_normal(t.size)
        )
        with wave.open(path, "wb") as w:
            w.setnchannels(1)
            w.setsampwidth(2)
            w.setframerate(sr)
            w.writeframes((np.clip(x, -1, 1) * 32767).astype("<i2").tobytes())

    wav(f"{T}/data/spks/prompt.wav", 44100, 0.9, 180.0)
    wav(f"{T}/data/lg/prompt_15014.wav", 16000, 1.1, 240.0)
    try:
        import onnx
        from onnx import helper, numpy_helper, TensorProto as TP

        proj = (rng.standard_normal((80, 192)) / 9).astype(np.float32)
        nodes = [
            helper.make_node("ReduceMax", ["input"], ["m"], keepdims=0, axes=[1]),
            helper.make_node("MatMul", ["m", "w"], ["output"]),
        ]
        gr = helper.make_graph(
            nodes,
            "campplus_tiny",
            [helper.make_tensor_value_info("input", TP.FLOAT, [1, "T", 80])],
            [helper.make_tensor_value_info("output", TP.FLOAT, [1, 192])],
            [numpy_helper.from_array(proj, "w")],
        )
        m = helper.make_model(gr, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
        onnx.save(m, f"{T}/campplus.onnx")
    except ImportError:
        print("onnx not installed: no campplus.onnx written")
    tot = sum(os.path.getsize(os.path.join(r, f)) for r, _, fs in os.walk(OUT) for f in fs)
    print(
        f"built {OUT}: {tot / 1e6:.1f} MB, thinker {len(W)} / talker {len(X)} / vae {len(V)} tensors"
    )
