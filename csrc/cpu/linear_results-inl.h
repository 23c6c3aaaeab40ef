// The steps behind a product, from the sums in registers. Included inside a namespace, before the
// products.

// Numbers of the columns of one panel, with zeros behind the last column, where memory belongs to
// others. Null stays null.
struct PanelColumns {
    PanelColumns(const float* numbers, int64_t column, int64_t num_columns)
        : data(numbers == nullptr ? nullptr : numbers + column) {
        if (data == nullptr || num_columns == kPanel) return;
        for (int64_t c = 0; c < kPanel; ++c) copy[c] = c < num_columns ? data[c] : 0.0f;
        data = copy;
    }
    PanelColumns(const PanelColumns&) = delete;

    const float* data;
    float copy[kPanel];
};

// Where sums go, and what is added to them on the way; null: nothing.
struct Results {
    float* y;
    int64_t stride;
    const float* bias;
    const float* residual;  // like y
    bool has_relu;          // the activation that costs nothing here

    Results from(int64_t column) const {
        return {y + column, stride, bias == nullptr ? nullptr : bias + column,
                residual == nullptr ? nullptr : residual + column, has_relu};
    }
    void put(int64_t row, int64_t column, Vec sum) const {
        if (bias != nullptr) sum = add(sum, load(bias + column));
        if (residual != nullptr) sum = add(sum, load(residual + row * stride + column));
        if (has_relu) sum = relu(sum);
        store(y + row * stride + column, sum);
    }
};

// The results in the columns of one panel. A panel with fewer columns has its results in a copy,
// until they are finished.
class PanelResults {
  public:
    PanelResults(const LinearParams& params, int64_t panel)
        : params_(params),
          column_(panel * kPanel),
          num_columns_(params.num_columns - column_ < kPanel ? params.num_columns - column_
                                                             : kPanel),
          bias_(params.bias, column_, num_columns_),
          scale_(params.scale, column_, num_columns_) {}

    const float* scale() const { return scale_.data; }

    // Where the sums of a block of rows go, before they are finished.
    Results of(int64_t row) {
        float* y = row_of(row);
        const bool has_relu = params_.activation == Activation::kRelu;
        if (num_columns_ < kPanel) return {copy_, kPanel, bias_.data, nullptr, has_relu};
        return {y, params_.num_columns, bias_.data, params_.adds ? y : nullptr, has_relu};
    }

    void finish(int64_t row, int64_t num_rows) {
        const Results results = of(row);
        if (!results.has_relu) activate(params_.activation, num_rows, results.y, results.stride);
        if (num_columns_ == kPanel) return;
        for (int64_t r = 0; r < num_rows; ++r) {
            float* y = row_of(row + r);
            for (int64_t c = 0; c < num_columns_; ++c) {
                y[c] = copy_[r * kPanel + c] + (params_.adds ? y[c] : 0.0f);
            }
        }
    }

  private:
    float* row_of(int64_t row) const { return params_.y + row * params_.num_columns + column_; }

    const LinearParams& params_;
    int64_t column_, num_columns_;
    PanelColumns bias_, scale_;
    float copy_[(kPassRows > kSumsRows ? kPassRows : kSumsRows) * kPanel];
};
