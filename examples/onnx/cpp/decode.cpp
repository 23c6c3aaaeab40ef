// Decode a sentence or a recording with the graphs that `pybeam export-onnx` wrote. There is no
// pybeam in here and no Python.
//
//     decode FOLDER SENTENCE        for a translator
//     decode FOLDER RECORDING.wav   for a recogniser
//
// It prints the hypotheses, best first, each behind its score.

#include <onnxruntime_cxx_api.h>
#include <sentencepiece_processor.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sndfile.hh>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

using Path = std::filesystem::path;
using Shape = std::vector<int64_t>;
using Names = std::vector<const char*>;

constexpr int64_t kWidth = 5, kMaxLength = 60;
constexpr float kLengthPenalty = 1.0f;

struct Hypothesis {
    std::vector<int> tokens;
    float final_score;
};

struct Text {
    std::string text;
    float final_score;
};

// A tensor borrows its numbers.
template <typename T>
Ort::Value tensor(std::vector<T>& numbers, const Shape& shape) {
    static const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
    return Ort::Value::CreateTensor<T>(memory, numbers.data(), numbers.size(), shape.data(),
                                       shape.size());
}

std::vector<Ort::Value> run(const Path& graph, const Names& inputs,
                            const std::vector<Ort::Value>& values, const Names& outputs) {
    static Ort::Env environment(ORT_LOGGING_LEVEL_WARNING, "decode");
    Ort::Session session(environment, graph.c_str(), Ort::SessionOptions());
    return session.Run(Ort::RunOptions(nullptr), inputs.data(), values.data(), inputs.size(),
                       outputs.data(), outputs.size());
}

// Decodes a batch of one. `names` are those of the source and its length, which differ from model
// to model.
std::vector<Hypothesis> search(const Path& folder, const Names& names, Ort::Value source,
                               int64_t length) {
    std::vector<int64_t> lengths{length}, width{kWidth}, max_length{kMaxLength};
    std::vector<float> length_penalty{kLengthPenalty};
    std::vector<Ort::Value> values;
    values.push_back(std::move(source));
    values.push_back(tensor(lengths, {1}));
    values.push_back(tensor(width, {}));
    values.push_back(tensor(max_length, {}));
    values.push_back(tensor(length_penalty, {}));
    const auto outputs =
        run(folder / "search.onnx", {names[0], names[1], "width", "max_length", "length_penalty"},
            values, {"tokens", "lengths", "final_scores"});

    const Shape shape = outputs[0].GetTensorTypeAndShapeInfo().GetShape();  // [1, K, T]
    const auto* token = outputs[0].GetTensorData<int64_t>();
    const auto* num_tokens = outputs[1].GetTensorData<int64_t>();
    const auto* final_score = outputs[2].GetTensorData<float>();
    std::vector<Hypothesis> found;
    for (int64_t k = 0; k < shape[1]; ++k) {
        if (final_score[k] == -INFINITY) break;  // there are fewer than K
        const auto* first = token + k * shape[2];
        found.push_back({{first, first + num_tokens[k]}, final_score[k]});
    }
    return found;
}

nlohmann::json read_json(const Path& path) {
    std::ifstream file(path);
    if (!file) throw std::runtime_error("cannot open " + path.string());
    return nlohmann::json::parse(file);
}

std::vector<Text> translate(const Path& folder, const std::string& sentence) {
    sentencepiece::SentencePieceProcessor pieces;
    const auto status = pieces.Load((folder / "sentencepiece.model").string());
    if (!status.ok()) throw std::runtime_error(status.ToString());
    std::vector<int> ids = pieces.EncodeAsIds(sentence);
    ids.push_back(read_json(folder / "config.json").at("eos_token_id"));
    std::vector<int64_t> source(ids.begin(), ids.end());
    const auto length = static_cast<int64_t>(source.size());

    std::vector<Text> texts;
    for (const auto& one :
         search(folder, {"source", "source_length"}, tensor(source, {1, length}), length))
        texts.push_back({pieces.DecodeIds(one.tokens), one.final_score});
    return texts;
}

std::vector<float> read_samples(const std::string& path, int rate) {
    SndfileHandle file(path);
    if (file.error()) throw std::runtime_error(path + ": " + file.strError());
    if (file.samplerate() != rate || file.channels() != 1)
        throw std::runtime_error(path + " must have one channel and " + std::to_string(rate) +
                                 " Hz; convert it: `ffmpeg -i in.wav -ac 1 -ar " +
                                 std::to_string(rate) + " out.wav`");
    std::vector<float> samples(file.frames());
    samples.resize(file.readf(samples.data(), file.frames()));
    return samples;
}

// The example recogniser's tokens are whole words. Other models need a library for their
// `tokenizer.json`.
std::map<int, std::string> read_words(const Path& path) {
    const auto model = read_json(path).at("model");
    if (model.at("type") != "WordLevel")
        throw std::runtime_error(path.string() + " has more than words");
    std::map<int, std::string> words;
    for (const auto& [word, id] : model.at("vocab").items()) words[id] = word;
    return words;
}

std::vector<Text> recognise(const Path& folder, const std::string& recording) {
    const int rate = read_json(folder / "preprocessor_config.json").at("sampling_rate");
    std::vector<float> samples = read_samples(recording, rate);
    std::vector<Ort::Value> inputs;
    inputs.push_back(tensor(samples, {static_cast<int64_t>(samples.size())}));
    auto heard = run(folder / "features.onnx", {"samples"}, inputs, {"features"});
    const Shape shape = heard[0].GetTensorTypeAndShapeInfo().GetShape();  // [E, F]
    const auto* feature = heard[0].GetTensorData<float>();
    std::vector<float> features(feature, feature + shape[0] * shape[1]);

    const auto words = read_words(folder / "tokenizer.json");
    std::vector<Text> texts;
    for (const auto& one : search(folder, {"features", "feature_length"},
                                  tensor(features, {1, shape[0], shape[1]}), shape[0])) {
        std::string text;
        for (const int id : one.tokens) text += (text.empty() ? "" : " ") + words.at(id);
        texts.push_back({text, one.final_score});
    }
    return texts;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 3) {
        std::fprintf(stderr, "usage: decode FOLDER SENTENCE | decode FOLDER RECORDING.wav\n");
        return 2;
    }
    try {
        const Path folder = argv[1];
        const bool listens = exists(folder / "features.onnx");
        for (const auto& [text, final_score] :
             listens ? recognise(folder, argv[2]) : translate(folder, argv[2]))
            std::printf("%.4f\t%s\n", final_score, text.c_str());
    } catch (const std::exception& error) {
        std::fprintf(stderr, "decode: %s\n", error.what());
        return 1;
    }
}
