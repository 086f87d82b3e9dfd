// For Gradle users who build the library from source. Not run by our CI: no Gradle and no Android plugin is reachable there.
// `cargo xtask android` makes the same AAR without Gradle; depend on that by coordinates if you can.
//
// Before: `cargo xtask bindgen` (src/main/uniffi), `cargo xtask android` (target/android/jni).
plugins {
    id("com.android.library") version "8.7.0"
    kotlin("android") version "2.4.21"
}

android {
    namespace = "dev.pannier"
    compileSdk = 35
    defaultConfig {
        minSdk = 26
        consumerProguardFiles("consumer-rules.pro")
    }
    sourceSets["main"].apply {
        manifest.srcFile("src/android/AndroidManifest.xml")
        kotlin.srcDirs("src/main/kotlin", "src/main/uniffi", "src/android/kotlin")
        jniLibs.srcDirs("../target/android/jni")
    }
}

dependencies {
    implementation("net.java.dev.jna:jna:5.19.1@aar")
    api("org.jetbrains.kotlinx:kotlinx-coroutines-core-jvm:1.11.0")
}
