// Runs gnuplot on scripts embedded in the binary. See gnuplot.h.
#include "tools/text/gnuplot.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "kernels/base/errors.h"
#include "tools/text/distinct.h"
#include "tools/text/embedded_text.h"
#include "tools/text/escape.h"
#include "tools/text/figure_data.h"
#include "tools/text/text.h"
#include "tools/text/write_file.h"

namespace precbench {
namespace {

namespace fs = std::filesystem;

/// A figure takes less than a second; gnuplot is assumed to hang after this time.
constexpr unsigned kTimeLimitSeconds = 60;

/// Limit on the number of figures, since each takes gnuplot some time.
constexpr std::size_t kMostFigures = 200;

/// No temporary folder could be used. The report is still written, without figures.
struct NoWorkFolder : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Temporary folder. All functions throw NoWorkFolder if it cannot be written.
class WorkFolder {
 public:
  WorkFolder() {
    std::error_code error;
    const fs::path parent = fs::temp_directory_path(error);
    std::string pattern = (parent / "precbench-plots-XXXXXX").string();
    if (error || !::mkdtemp(pattern.data()))
      throw NoWorkFolder("no folder for temporary files, whose place TMPDIR names, can be made");
    path = pattern;
    fs::create_directories(path / "plots", error);
  }
  ~WorkFolder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;

  void write(const std::string& name, const std::string& text) const {
    try {
      write_file((path / name).string(), text);
    } catch (const InvalidInput& error) {
      throw NoWorkFolder(error.what());
    }
  }

  fs::path path;
};

std::string read_text(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

bool is_installed() {
  const char* search = std::getenv("PATH");
  std::istringstream folders(search ? search : "");
  for (std::string folder; std::getline(folders, folder, ':');)
    if (!folder.empty() && ::access((folder + "/gnuplot").c_str(), X_OK) == 0) return true;
  return false;
}

/// Runs gnuplot in `folder`, with its messages in gnuplot.log there. Returns true if it succeeded.
bool run_gnuplot(const fs::path& folder, const std::string& settings, const std::string& script) {
  const std::string where = folder.string(), log = (folder / "gnuplot.log").string();
  const pid_t child = ::fork();
  if (child == 0) {
    const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    const int in = ::open("/dev/null", O_RDONLY);
    if (out < 0 || in < 0 || ::chdir(where.c_str()) != 0) ::_exit(127);
    ::dup2(in, 0);
    ::dup2(out, 1);
    ::dup2(out, 2);
    ::alarm(kTimeLimitSeconds);  // survives exec
    // -d ignores user settings, so that equal records give equal pictures everywhere.
    ::execlp("gnuplot", "gnuplot", "-d", "-e", settings.c_str(), script.c_str(), static_cast<char*>(nullptr));
    ::_exit(127);
  }
  int status = 0;
  return child > 0 && ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/// Returns the last message in gnuplot's log; the lines before it quote the statement and mark the position.
std::string last_complaint(const fs::path& folder) {
  std::istringstream lines(read_text(folder / "gnuplot.log"));
  std::string last;
  for (std::string line; std::getline(lines, line);)
    if (line.find_first_not_of(" ^") != std::string::npos) last = line;
  return last.empty() ? "no message" : last;
}

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
}

/// Returns true if the picture file is complete. On a full disk gnuplot reports success as well.
bool is_whole(const fs::path& picture) {
  constexpr std::size_t kEnd = 16;
  const std::string text = read_text(picture);
  const std::string end = text.substr(text.size() - std::min(text.size(), kEnd));
  return end.find(picture.extension() == ".png" ? "IEND" : "</svg>") != std::string::npos;
}

/// Draws the figures. Returns a notice for the reader, or an empty text.
std::string draw(const std::vector<Figure*>& figures, const std::string& folder, const std::string& output) {
  const WorkFolder work;
  for (const auto& [name, text] : kPlotScripts) work.write("plots/" + std::string(name) + ".gp", text);
  Distinct not_drawn;
  std::string complaint;
  for (std::size_t i = 0; i < figures.size(); ++i) {
    Figure& figure = *figures[i];
    const std::string file_data = plot_heading(figure.heading) + figure.data;
    work.write("data", figure.data);
    work.write("file.data", file_data);
    const auto drawn = [&](const std::string& settings, const char* picture) {
      const bool done = run_gnuplot(work.path, fmt::format("{}; output='{}'", settings, picture),
                                    "plots/" + figure.script + ".gp");
      if (done && is_whole(work.path / picture)) return true;
      if (not_drawn.texts.empty())
        complaint = done ? "its picture is cut off; the folder for temporary files may be full"
                         : last_complaint(work.path);
      not_drawn.add(figure.name);
      return false;
    };
    if (!drawn("data='data'; transparent=1", "page.svg")) continue;
    figure.svg = svg_for_page(read_text(work.path / "page.svg"), fmt::format("f{}", i + 1),
                              figure.heading + ": " + figure.caption);
    if (folder.empty() || !drawn("data='file.data'", "file.svg") || !drawn("data='file.data'", "file.png"))
      continue;
    const fs::path file = fs::path(folder) / figure.name;
    write_file(file.string() + ".svg", read_text(work.path / "file.svg"));
    write_file(file.string() + ".png", read_text(work.path / "file.png"));
    write_file(file.string() + ".dat", file_data);
    const fs::path base = output.empty() ? fs::path(".") : fs::path(output).parent_path();
    figure.link = fs::path(file.string() + ".svg").lexically_proximate(base.empty() ? "." : base).string();
  }
  return not_drawn.texts.empty()
             ? ""
             : fmt::format("gnuplot could not draw {}: {}", not_drawn.joined(), complaint);
}

}  // namespace

std::string svg_for_page(const std::string& svg, const std::string& id, const std::string& caption) {
  const std::size_t begin = svg.find("<svg");
  std::string text = begin == std::string::npos ? svg : svg.substr(begin);
  replace_all(text, "id=\"", "id=\"" + id + "-");
  replace_all(text, "id='", "id='" + id + "-");
  replace_all(text, "href='#", "href='#" + id + "-");
  replace_all(text, "url(#", "url(#" + id + "-");
  replace_all(text, "rgb(  0,   0,   0)", "currentColor");
  replace_all(text, "\"black\"", "\"currentColor\"");
  replace_all(text, "'black'", "'currentColor'");
  replace_all(text, "rgb(0,0,0)", "currentColor");
  replace_all(text, "<title>Gnuplot</title>", "<title>" + xml_text(caption) + "</title>");
  replace_all(text, "<title>gnuplot_plot_", "<title>line ");
  text = std::regex_replace(text, std::regex("<desc>[^<]*</desc>\\s*"), "");
  text.replace(0, 4, "<svg role=\"img\"");
  return text;
}

bool draw_figures(Document& document, const std::string& folder, const std::string& output) {
  std::vector<Figure*> figures;
  for (Section& section : document.sections)
    for (Figure& figure : section.figures) figures.push_back(&figure);
  if (figures.empty()) return true;
  if (!is_installed()) {
    document.notice =
        "There is no gnuplot here, so this report has tables and no figures; install gnuplot (gnuplot-nox) "
        "for them";
    return false;
  }
  make_folder(folder);
  const std::size_t all = figures.size();
  figures.resize(std::min(all, kMostFigures));
  try {
    document.notice = draw(figures, folder, output);
  } catch (const NoWorkFolder& error) {
    document.notice = fmt::format("This report has tables and no figures: {}", error.what());
  }
  if (!document.notice.empty()) return false;
  if (figures.size() < all)
    document.notice = fmt::format("Of {} figures the first {} are drawn", all, figures.size());
  return true;
}

}  // namespace precbench
