// Decode a sentence or a recording with the graphs that `pybeam export-onnx` wrote. There is no
// pybeam in here and no Python.
//
//     decode FOLDER SENTENCE                    for a translator
//     decode FOLDER RECORDING.wav [LANGUAGE]    for a recogniser; Whisper is told the language
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
using Json = nlohmann::json;

constexpr int64_t kWidth = 5, kMaxLength = 200;
constexpr float kLengthPenalty = 1.0f;

struct Hypothesis {
    std::vector<int> tokens;
    float final_score;
};

struct Text {
    std::string text;
    float final_score;
};

// Inputs of a graph by name. A tensor borrows its numbers, so they must outlive the call.
class Inputs {
  public:
    template <typename T>
    void add(const char* name, std::vector<T>& numbers, const Shape& shape) {
        static const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
        names_.push_back(name);
        values_.push_back(Ort::Value::CreateTensor<T>(memory, numbers.data(), numbers.size(),
                                                      shape.data(), shape.size()));
    }

    std::vector<Ort::Value> run(const Path& graph, const Names& outputs) const {
        static Ort::Env environment(ORT_LOGGING_LEVEL_WARNING, "decode");
        Ort::Session session(environment, graph.c_str(), Ort::SessionOptions());
        return session.Run(Ort::RunOptions(nullptr), names_.data(), values_.data(), names_.size(),
                           outputs.data(), outputs.size());
    }

  private:
    Names names_;
    std::vector<Ort::Value> values_;
};

// Decodes a batch of one: `inputs` has the source.
std::vector<Hypothesis> search(const Path& folder, Inputs inputs) {
    std::vector<int64_t> width{kWidth}, max_length{kMaxLength};
    std::vector<float> length_penalty{kLengthPenalty};
    inputs.add("width", width, {});
    inputs.add("max_length", max_length, {});
    inputs.add("length_penalty", length_penalty, {});
    const auto outputs = inputs.run(folder / "search.onnx", {"tokens", "lengths", "final_scores"});

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

Json read_json(const Path& path) {
    std::ifstream file(path);
    if (!file) throw std::runtime_error("cannot open " + path.string());
    return Json::parse(file);
}

std::vector<Text> translate(const Path& folder, const std::string& sentence) {
    sentencepiece::SentencePieceProcessor pieces;
    const auto status = pieces.Load((folder / "sentencepiece.model").string());
    if (!status.ok()) throw std::runtime_error(status.ToString());
    std::vector<int> ids = pieces.EncodeAsIds(sentence);
    ids.push_back(read_json(folder / "config.json").at("eos_token_id"));

    std::vector<int64_t> source(ids.begin(), ids.end()), length{static_cast<int64_t>(ids.size())};
    Inputs inputs;
    inputs.add("source", source, {1, length[0]});
    inputs.add("source_length", length, {1});
    std::vector<Text> texts;
    for (const auto& one : search(folder, std::move(inputs)))
        texts.push_back({pieces.DecodeIds(one.tokens), one.final_score});
    return texts;
}

std::vector<float> read_samples(const std::string& path, int rate) {
    SndfileHandle file(path);
    if (file.error()) throw std::runtime_error(path + ": " + file.strError());
    if (file.samplerate() != rate || file.channels() != 1) {
        const std::string hertz = std::to_string(rate);
        throw std::runtime_error(path + " must have one channel and " + hertz +
                                 " Hz; convert it: `ffmpeg -i in.wav -ac 1 -ar " + hertz +
                                 " out.wav`");
    }
    std::vector<float> samples(file.frames());
    samples.resize(file.readf(samples.data(), file.frames()));
    return samples;
}

// Turns tokens into text with `tokenizer.json`: whole words, or pieces in which every letter stands
// for a byte, as in Whisper.
class Vocabulary {
  public:
    explicit Vocabulary(const Path& path) {
        const Json json = read_json(path), model = json.at("model");
        has_words_ = model.at("type") == "WordLevel";
        if (!has_words_ &&
            (!json.at("decoder").is_object() || json["decoder"].at("type") != "ByteLevel"))
            throw std::runtime_error(path.string() + " must hold words or byte-level pieces");
        for (const auto& [piece, id] : model.at("vocab").items()) pieces_[id] = piece;
        for (const auto& token : json.at("added_tokens")) pieces_.erase(token.at("id"));
        int other = 256;
        for (int byte = 0; byte < 256; ++byte) {
            const bool is_visible = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
            byte_[is_visible ? byte : other++] = static_cast<char>(byte);
        }
    }

    std::string text(const std::vector<int>& tokens) const {
        std::string text;
        for (const int token : tokens) {
            const auto found = pieces_.find(token);
            if (found == pieces_.end()) continue;  // no text but a command
            text += has_words_ ? " " + found->second : bytes(found->second);
        }
        const auto first = text.find_first_not_of(' ');
        return first == std::string::npos
                   ? ""
                   : text.substr(first, text.find_last_not_of(' ') - first + 1);
    }

  private:
    // A letter is one byte of UTF-8 or two.
    std::string bytes(const std::string& piece) const {
        std::string found;
        for (size_t i = 0; i < piece.size(); ++i) {
            int letter = static_cast<unsigned char>(piece[i]);
            if (letter > 127) letter = (letter & 31) << 6 | (piece.at(++i) & 63);
            found += byte_.at(letter);
        }
        return found;
    }

    bool has_words_;
    std::map<int, std::string> pieces_;
    std::map<int, char> byte_;
};

// The tokens with which Whisper's outputs begin; none for other models.
std::vector<int64_t> prefix_of(const Path& folder, const std::string& language) {
    const Path path = folder / "generation_config.json";
    const Json config = exists(path) ? read_json(path) : Json::object();
    if (!config.contains("no_timestamps_token_id")) return {};
    const int64_t last = config["no_timestamps_token_id"];
    if (!config.value("is_multilingual", config.contains("lang_to_id"))) return {last};
    return {config.at("lang_to_id").at("<|" + language + "|>"),
            config.at("task_to_id").at("transcribe"), last};
}

std::vector<Text> recognise(const Path& folder, const std::string& recording,
                            const std::string& language) {
    const int rate = read_json(folder / "preprocessor_config.json").at("sampling_rate");
    std::vector<float> samples = read_samples(recording, rate);
    Inputs sound;
    sound.add("samples", samples, {static_cast<int64_t>(samples.size())});
    const auto heard = sound.run(folder / "features.onnx", {"features"});
    const Shape shape = heard[0].GetTensorTypeAndShapeInfo().GetShape();  // [E, F]
    const auto* feature = heard[0].GetTensorData<float>();

    std::vector<float> features(feature, feature + shape[0] * shape[1]);
    std::vector<int64_t> length{shape[0]}, prefix = prefix_of(folder, language);
    Inputs inputs;
    inputs.add("features", features, {1, shape[0], shape[1]});
    inputs.add("feature_length", length, {1});
    if (!prefix.empty()) inputs.add("prefix", prefix, {1, static_cast<int64_t>(prefix.size())});
    const Vocabulary vocabulary(folder / "tokenizer.json");
    std::vector<Text> texts;
    for (const auto& one : search(folder, std::move(inputs)))
        texts.push_back({vocabulary.text(one.tokens), one.final_score});
    return texts;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 3 || argc > 4) {
        std::fprintf(stderr,
                     "usage: decode FOLDER SENTENCE | decode FOLDER RECORDING.wav [LANGUAGE]\n");
        return 2;
    }
    try {
        const Path folder = argv[1];
        const std::string given = argv[2], language = argc == 4 ? argv[3] : "en";
        const bool listens = exists(folder / "features.onnx");
        for (const auto& [text, final_score] :
             listens ? recognise(folder, given, language) : translate(folder, given))
            std::printf("%.4f\t%s\n", final_score, text.c_str());
    } catch (const std::exception& error) {
        std::fprintf(stderr, "decode: %s\n", error.what());
        return 1;
    }
}
