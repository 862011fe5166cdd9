// Plots as SVG that follows the page's colours. Both axes are logarithmic.
#include "bench_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>

#include "conformance_report.hpp"
#include "paths.hpp"

namespace vkattn::tools {
namespace {

constexpr double plot_width = 440, plot_height = 280;
constexpr double margin_left = 46, margin_right = 18, margin_top = 10, margin_bottom = 34;
// The colours are those of Okabe and Ito, which people who see few colours tell apart, too, on light and on dark.
constexpr const char* colours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"};

struct Point {
    double x, y;
};
struct Line {
    std::string name;
    std::vector<Point> points;
    bool is_ceiling = false;
    size_t colour = 0;
};

// Prints three digits, or all before the point.
std::string short_text(double x) {
    return x >= 1000 ? fmt::format("{:.0f}", x) : fmt::format("{:.3g}", x);
}

struct Axis {
    double least = std::numeric_limits<double>::infinity(), most = 0;

    void include(double x) {
        least = std::min(least, x);
        most = std::max(most, x);
    }
    // Returns 0 for the least and 1 for the most.
    double at(double x) const { return most > least ? std::log(x / least) / std::log(most / least) : 0.5; }
};

class Plot {
  public:
    explicit Plot(std::vector<Line> lines) : lines_(std::move(lines)) {
        for (const Line& line : lines_)
            for (const Point& p : line.points) {
                x_.include(p.x);
                y_.include(p.y);
            }
        y_.least = std::pow(10, std::floor(std::log10(y_.least)));
        y_.most = std::pow(10, std::ceil(std::log10(y_.most * 1.001)));
    }

    std::string svg(const std::string& title, const std::string& x_name,
                    const std::vector<double>& x_marks) const {
        std::string all = fmt::format(
            "<figure><figcaption>{}</figcaption><svg viewBox=\"0 0 {} {}\" width=\"100%\" role=\"img\" "
            "aria-label=\"{}\">\n",
            title, plot_width, plot_height, title);
        for (double y = y_.least; y <= y_.most * 1.001; y *= 10)
            all += fmt::format(
                "<line x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"var(--line)\"/>"
                "<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n",
                margin_left, plot_width - margin_right, at_y(y), at_y(y), margin_left - 5, at_y(y) + 4,
                short_text(y));
        for (const double x : x_marks)
            if (x >= x_.least * 0.999 && x <= x_.most * 1.001)
                all += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", at_x(x),
                                   plot_height - margin_bottom + 15, short_text(x));
        all += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n",
                           plot_width - margin_right, plot_height - 4, x_name);
        for (const Line& line : lines_) all += draw(line, colour_of(line));
        return all + "</svg>\n" + legend() + "</figure>\n";
    }

  private:
    static const char* colour_of(const Line& line) {
        return line.is_ceiling ? "var(--soft)" : colours[line.colour % std::size(colours)];
    }
    double at_x(double x) const { return margin_left + (plot_width - margin_left - margin_right) * x_.at(x); }
    double at_y(double y) const {
        return plot_height - margin_bottom - (plot_height - margin_top - margin_bottom) * y_.at(y);
    }

    std::string draw(const Line& line, const std::string& colour) const {
        std::string points, dots;
        for (const Point& p : line.points) {
            points += fmt::format("{:.1f},{:.1f} ", at_x(p.x), at_y(p.y));
            if (!line.is_ceiling)
                dots += fmt::format(
                    "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\"><title>{}: {:.4g}"
                    "</title></circle>",
                    at_x(p.x), at_y(p.y), colour, conformance::escaped(line.name), p.y);
        }
        return fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"{}/>{}\n",
                           points, colour, line.is_ceiling ? " stroke-dasharray=\"5 4\"" : "", dots);
    }

    std::string legend() const {
        std::string all = "<p class=\"legend\">";
        for (const Line& line : lines_)
            all += fmt::format("<span><i style=\"background:{}\"></i>{}</span> ", colour_of(line),
                               conformance::escaped(line.name));
        return all + "</p>\n";
    }

    std::vector<Line> lines_;
    Axis x_, y_;
};

// Named is a case's name, as in "prefill d64 n512", without the length that it ends with, and this length. Cases of one
// line have the former in common.
struct Named {
    std::string line;
    double length = 0;  // 0: it ends with none
};
Named split(const std::string& name) {
    constexpr size_t most_digits = 15;  // of a number that a double holds
    const size_t digits = name.find_last_not_of("0123456789") + 1;
    if (digits == 0 || digits == name.size() || name.size() - digits > most_digits) return {name};
    const size_t end = name.find_last_not_of("n ", digits - 1);
    return {name.substr(0, end == std::string::npos ? digits : end + 1), std::stod(name.substr(digits))};
}

// An axis that is logarithmic has no place for other rates: those of empty problems, and what a broken clock makes.
bool can_be_plotted(const Json& result) {
    const auto is_positive = [&](const char* rate) {
        const auto at = result.find(rate);
        return at != result.end() && at->is_number() && *at > 0 && std::isfinite(at->get<double>());
    };
    return is_positive("tflops") && is_positive("gbps");
}

std::vector<Line> sorted(std::map<std::string, Line> lines) {
    std::vector<Line> all;
    for (auto& [name, line] : lines) {
        std::ranges::sort(line.points, {}, &Point::x);
        all.push_back(std::move(line));
    }
    return all;
}

std::vector<Line> lines_by_length(const std::vector<Benched>& all) {
    std::vector<Line> lines;
    for (const auto& [tool, cases] : all) {
        std::map<std::string, Line> own;
        for (const Json& r : cases) {
            const Named named = split(r["name"]);
            if (!can_be_plotted(r) || named.length == 0 || named.line.starts_with("deco")) continue;
            Line& line = own[named.line];
            line.name = tool.empty() ? named.line : fmt::format("{}, {}", named.line, tool);
            line.points.push_back({named.length, r["tflops"]});
        }
        for (Line& line : sorted(std::move(own))) lines.push_back(std::move(line));
    }
    return lines;
}

// Each has the rate over the operations that each byte of query, key, value and out has, below what the device can do.
std::vector<Line> lines_of_roofline(const std::vector<Json>& cases, const Json& ceilings) {
    std::map<std::string, Line> lines;
    Axis x;
    for (const Json& r : cases) {
        if (!can_be_plotted(r)) continue;
        const double intensity = 1e3 * r["tflops"].get<double>() / r["gbps"].get<double>();
        Line& line = lines[split(r["name"]).line];
        line.name = split(r["name"]).line;
        line.points.push_back({intensity, r["tflops"]});
        x.include(intensity);
    }
    std::vector<Line> all = sorted(std::move(lines));
    if (all.empty()) return all;
    const double reading = 1e-3 * ceilings["read_gbps"].get<double>();  // TFLOP/s at one operation a byte
    for (const auto& [key, what] : {std::pair{"fma_tflops", "float32"}, {"matrix_tflops", "matrix units"}}) {
        if (ceilings[key].is_null()) continue;
        const double most = ceilings[key], bend = std::clamp(most / reading, x.least, x.most);
        Line line{fmt::format("{}, and the bytes that it reads", what), {}, true};
        for (const double at : {x.least, bend, x.most})
            line.points.push_back({at, std::min(most, reading * at)});
        all.push_back(std::move(line));
    }
    return all;
}

// Lists cases by their names, and lengths as numbers.
std::string table_of(std::vector<Json> cases) {
    std::ranges::sort(cases, {}, [](const Json& r) {
        const Named named = split(r["name"]);
        return std::pair(named.line, named.length);
    });
    std::string html =
        "<div "
        "class=\"wide\"><table><tr><th>case</th><th>ms</th><th>TFLOP/s</th><th>GB/s</th><th>kernel</th></"
        "tr>\n";
    for (const Json& r : cases) {
        html += fmt::format("<tr><td>{}</td>", conformance::escaped(r["name"]));
        const char* const why = r.contains("wrong") ? "wrong" : r.contains("refused") ? "refused" : nullptr;
        if (why != nullptr)
            html += fmt::format("<td colspan=\"4\" class=\"{}\">{}</td></tr>\n",
                                r.contains("wrong") ? "fail" : "soft", conformance::escaped(r[why]));
        else
            html += fmt::format(
                "<td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td>{}</td></tr>\n",
                short_text(r["ms"]), short_text(r["tflops"]), short_text(r["gbps"]),
                conformance::escaped(r["kernel"]));
    }
    return html + "</table></div>\n";
}

std::string ceilings_text(const Json& ceilings) {
    std::string text = fmt::format("{:.3g} TFLOP/s of float32, ", ceilings["fma_tflops"].get<double>());
    if (!ceilings["matrix_tflops"].is_null())
        text += fmt::format("{:.3g} TFLOP/s of the matrix units, ", ceilings["matrix_tflops"].get<double>());
    return text + fmt::format("{:.4g} GB/s of a copy, {:.4g} GB/s of reading",
                              ceilings["copy_gbps"].get<double>(), ceilings["read_gbps"].get<double>());
}

// Returns the powers of a number, at which an axis may have marks.
std::vector<double> powers(double base, int count) {
    std::vector<double> all;
    for (int i = 0; i < count; i++) all.push_back(std::pow(base, i));
    return all;
}

}  // namespace

std::vector<Benched> read_benched(const char* option, const std::string& path) {
    std::vector<Benched> all;
    std::ifstream file(path_of(path));
    for (std::string line; std::getline(file, line);) {
        const Json object = Json::parse(line, nullptr, false);
        try {
            all.push_back({object.at("tool"), object.at("cases").get<std::vector<Json>>()});
            for (const Json& result : all.back().cases) result.at("name").get<std::string>();
        } catch (const Json::exception&) {
            throw UsageError(option, fmt::format("{} has a line that is no result of a suite", path));
        }
    }
    if (all.empty()) throw UsageError(option, fmt::format("{} cannot be read, or is empty", path));
    return all;
}

std::string bench_section(const std::vector<Benched>& all, const Json& ceilings) {
    std::vector<Line> by_length = lines_by_length(all),
                      roofline = lines_of_roofline(all.front().cases, ceilings);
    std::map<std::string, size_t> colour_of;  // the same in both plots
    for (std::vector<Line>* lines : {&by_length, &roofline})
        for (Line& line : *lines)
            line.colour = colour_of.try_emplace(line.name, colour_of.size()).first->second;
    std::string html = fmt::format("<p class=\"soft\">The device's ceilings, measured beside: {}.</p>\n",
                                   ceilings_text(ceilings));
    if (!by_length.empty()) html += Plot(by_length).svg("TFLOP/s by length", "rows", powers(2, 32));
    if (!roofline.empty())
        html += Plot(roofline).svg("TFLOP/s by operations a byte, and the ceilings", "operations a byte",
                                   powers(10, 8));
    return html + table_of(all.front().cases);
}

std::string bench_page(const Json& suite, std::vector<Benched> peers) {
    peers.insert(peers.begin(), {"", suite["cases"].get<std::vector<Json>>()});
    const auto text = [&](const char* key) { return conformance::escaped(suite[key]); };
    return conformance::html_head("vkattn bench") +
           fmt::format("<h1>{}</h1><p class=\"soft\">{}, suite {}, {}, {}</p>\n", text("device"),
                       text("driver"), text("suite"), text("pass"), text("dtype")) +
           bench_section(peers, suite) + "</body></html>\n";
}

}  // namespace vkattn::tools
